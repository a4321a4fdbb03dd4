"""SCRAM verifiers, which check passwords without allowing a login (RFC 5802), and decoys of them.

SaltedPassword = PBKDF2(password, salt, iterations)          slow: never on the event loop
StoredKey      = H(HMAC(SaltedPassword, "Client Key"))       a client that knows the password can make this
ServerKey      = HMAC(SaltedPassword, "Server Key")          proves to the client that the broker knows the user

A decoy is shown for an unknown user, so that asking reveals no names. It has the iterations and salt length of a real
verifier, each kind about as often as it occurs, and always the same for a name. Without users it looks like one of
`kafscale users add`. When kinds come or go, the decoys of some names change.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections import Counter
from collections.abc import Mapping
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
    iterations: int
    salt: bytes = attrs.field(repr=False)
    stored_key: bytes = attrs.field(repr=False)
    server_key: bytes = attrs.field(repr=False)


def salt_password(mechanism: SaslMechanism, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Derive the salted password: milliseconds of CPU time, without the interpreter's lock."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password, salt, iterations)


def stored_key_of(mechanism: SaslMechanism, salted_password: bytes) -> bytes:
    client_key = hmac.digest(salted_password, b"Client Key", HASHES[mechanism])
    return hashlib.new(HASHES[mechanism], client_key).digest()


def verifier_of_salted(mechanism: SaslMechanism, salted_password: bytes, salt: bytes, iterations: int) -> ScramVerifier:
    """Return the verifier of a password that was salted elsewhere, as Kafka's tools do."""
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
    """Raise ValueError for a name that clients may send differently."""
    if not name:
        raise ValueError("Username must not be empty")
    if len(name.encode()) > USER_NAME_MAX_BYTES:
        raise ValueError(f"Username must not be longer than {USER_NAME_MAX_BYTES} bytes")
    _check_prepared("Username", name)


def check_password(password: str) -> None:
    """Raise ValueError for a password that RFC 5802 (SASLprep) would change: Java and librdkafka send it as it is."""
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


KINDS_MAX_COUNT: Final = 8  # of a mechanism, the most frequent ones: what a login costs does not grow with the users


@attrs.frozen
class Kind:
    """Properties of a verifier that a challenge shows. Its text seeds decoys: do not rename it."""

    iterations: int = DEFAULT_ITERATIONS
    salt_bytes: int = MADE_SALT_BYTES

    @classmethod
    def of(cls, verifier: ScramVerifier) -> Kind:
        return cls(verifier.iterations, len(verifier.salt))


@attrs.define(eq=False, repr=False)
class Decoys:
    """Makes decoys from a secret. The owner of the real verifiers calls `add` and `remove`."""

    secret: bytes = attrs.field(repr=False)
    _kinds: dict[SaslMechanism, Counter[Kind]] = attrs.field(
        factory=lambda: {mechanism: Counter() for mechanism in HASHES}, init=False
    )
    _frequent: dict[SaslMechanism, Mapping[Kind, int]] = attrs.field(factory=dict, init=False)  # until one changes

    def add(self, mechanism: SaslMechanism, verifier: ScramVerifier) -> None:
        self._kinds[mechanism][Kind.of(verifier)] += 1
        self._frequent.pop(mechanism, None)

    def remove(self, mechanism: SaslMechanism, verifier: ScramVerifier) -> None:
        kinds, kind = self._kinds[mechanism], Kind.of(verifier)
        kinds[kind] -= 1
        if not kinds[kind]:
            del kinds[kind]
        self._frequent.pop(mechanism, None)

    @property
    def usual_mechanism(self) -> SaslMechanism:
        """Mechanism of most verifiers; the stronger one if equal."""
        return max(reversed(SCRAM_TYPES.values()), key=lambda mechanism: self._kinds[mechanism].total())

    def make(self, mechanism: SaslMechanism, user: str) -> ScramVerifier:
        """Make the decoy of a user. No password has its keys."""
        kind = self._kind(mechanism, user)
        size_bytes = hashlib.new(HASHES[mechanism]).digest_size
        return ScramVerifier(
            iterations=kind.iterations,
            salt=self._part(f"salt {mechanism} {user}", kind.salt_bytes),
            stored_key=self._part(f"stored key {mechanism} {user}", size_bytes),
            server_key=self._part(f"server key {mechanism} {user}", size_bytes),
        )

    def _kind(self, mechanism: SaslMechanism, user: str) -> Kind:
        """Choose a kind by weighted rendezvous hashing: few names change theirs when the counts change."""
        kinds = self._frequent.get(mechanism)
        if kinds is None:
            kinds = self._frequent[mechanism] = dict(self._kinds[mechanism].most_common(KINDS_MAX_COUNT))

        def lot(kind: Kind) -> float:
            drawn = int.from_bytes(self._part(f"{kind} {mechanism} {user}", 8), "big")
            return -math.log((drawn + 1) / (2**64 + 1)) / kinds[kind]

        return min(kinds, key=lot, default=Kind())

    def _part(self, what: str, size_bytes: int) -> bytes:
        """Return bytes that look random without the secret."""
        blocks = range(-(-size_bytes // hashlib.sha512().digest_size))
        return b"".join(hmac.digest(self.secret, f"{block} {what}".encode(), "sha512") for block in blocks)[:size_bytes]
