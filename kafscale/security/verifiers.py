"""What the broker keeps of a password: enough to check one, not enough to log in with (RFC 5802).

SaltedPassword = PBKDF2(password, salt, iterations)          what takes time: never on the event loop
StoredKey      = H(HMAC(SaltedPassword, "Client Key"))       whoever knows the password can make this
ServerKey      = HMAC(SaltedPassword, "Server Key")          by which the broker shows that it knows the user
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

import attrs

from kafscale.config import SaslMechanism

# Kafka's bounds of what AlterUserScramCredentials may ask for.
ITERATIONS_LEAST, ITERATIONS_MOST = 4096, 16_384
DEFAULT_ITERATIONS: Final = 8192
SALT_MOST_BYTES: Final = 1024  # Kafka has no most; each user's salt is kept in memory
MADE_SALT_BYTES: Final = 24
USER_NAME_MAX_BYTES: Final = 255
PASSWORD_MAX_BYTES: Final = 1024

HASHES: Final = {SaslMechanism.SCRAM_SHA_256: "sha256", SaslMechanism.SCRAM_SHA_512: "sha512"}
# As AlterUserScramCredentials and DescribeUserScramCredentials number them (KIP-554).
SCRAM_TYPES: Final = {1: SaslMechanism.SCRAM_SHA_256, 2: SaslMechanism.SCRAM_SHA_512}


@attrs.frozen
class ScramVerifier:
    """What one user's password is checked against, by one mechanism. The keys are not shown."""

    iterations: int
    salt: bytes = attrs.field(repr=False)
    stored_key: bytes = attrs.field(repr=False)
    server_key: bytes = attrs.field(repr=False)


def salt_password(mechanism: SaslMechanism, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Derive the salted password: milliseconds of CPU time, without the interpreter's lock."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password, salt, iterations)


def stored_key_of(mechanism: SaslMechanism, salted_password: bytes) -> bytes:
    """Return the StoredKey."""
    client_key = hmac.digest(salted_password, b"Client Key", HASHES[mechanism])
    return hashlib.new(HASHES[mechanism], client_key).digest()


def verifier_of_salted(mechanism: SaslMechanism, salted_password: bytes, salt: bytes, iterations: int) -> ScramVerifier:
    """Return the verifier of a password that somebody else has salted, as Kafka's tools do."""
    return ScramVerifier(
        iterations=iterations,
        salt=salt,
        stored_key=stored_key_of(mechanism, salted_password),
        server_key=hmac.digest(salted_password, b"Server Key", HASHES[mechanism]),
    )


def make_verifier(
    mechanism: SaslMechanism, password: str, *, iterations: int = DEFAULT_ITERATIONS, salt: bytes | None = None
) -> ScramVerifier:
    """Make the verifier of a password: milliseconds of CPU time."""
    salt = secrets.token_bytes(MADE_SALT_BYTES) if salt is None else salt
    salted = salt_password(mechanism, password.encode(), salt, iterations)
    return verifier_of_salted(mechanism, salted, salt, iterations)


def check_user_name(name: str) -> None:
    """Raise ValueError for a name that clients would not all send alike."""
    if not name:
        raise ValueError("Username must not be empty")
    if len(name.encode()) > USER_NAME_MAX_BYTES:
        raise ValueError(f"Username must not be longer than {USER_NAME_MAX_BYTES} bytes")
    _check_prepared("Username", name)


def check_password(password: str) -> None:
    """Raise ValueError for a password that clients would not all send alike.

    RFC 5802 has a password prepared by SASLprep (RFC 4013), which some clients do and Java's and librdkafka do not. One
    that this changes would be right for some of them and wrong for the others.
    """
    if not password:
        raise ValueError("The password must not be empty")
    if len(password.encode()) > PASSWORD_MAX_BYTES:
        raise ValueError(f"The password must not be longer than {PASSWORD_MAX_BYTES} bytes")
    _check_prepared("The password", password)


def _check_prepared(what: str, text: str) -> None:
    from scramp import ScramException  # only now: it takes a start 50 ms
    from scramp.utils import saslprep

    try:
        prepared = saslprep(text)
    except ScramException as exc:
        raise ValueError(f"{what} has characters that SASLprep (RFC 4013) does not allow: {exc.args[0]}") from exc
    if prepared != text:
        raise ValueError(
            f"{what} has characters that SASLprep (RFC 4013) changes, so that clients would send it in two forms; "
            "leave out signs such as ª, Ⅸ or a non-breaking space"
        )
