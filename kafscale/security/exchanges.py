"""SASL exchanges: one for each login, which ends with a user's name or a refusal.

    PLAIN (RFC 4616)         client  [AUTHORIZATION-ID] NUL USER NUL PASSWORD
    SCRAM-SHA-256 and -512   client  n,,n=USER,r=NONCE              server  r=NONCE+OURS,s=SALT,i=ITERATIONS
    (RFC 5802, RFC 7677)     client  c=biws,r=NONCE+OURS,p=PROOF    server  v=SIGNATURE

An exchange takes messages and returns outcomes, without I/O. It asks its caller to derive keys, which takes
milliseconds of CPU, or to fetch the keys that sign tokens, and continues when it is sent the result.

PLAIN checks the password against the SCRAM verifier, so passwords are kept in one form. An unknown user takes as long
as a known one, and fails at the end like a wrong password. SCRAM without channel binding: a client that demands it
(`p=`), or sends an authorization id, is refused.
"""

from __future__ import annotations

import hmac
from collections.abc import Generator
from typing import Protocol

import attrs

from kafscale.config import SaslMechanism
from kafscale.login.scram import load_scramp
from kafscale.security.verifiers import PASSWORD_MAX_BYTES, USER_NAME_MAX_BYTES, ScramVerifier, stored_key_of


@attrs.frozen
class Challenge:
    data: bytes


@attrs.frozen
class Granted:
    """Successful login. The client gets `data`; `expires_at_ms` is a token's, since 1970."""

    name: str
    data: bytes = b""
    expires_at_ms: int | None = None


@attrs.frozen
class Refused:
    """Failed login. `why` is for the log, without secrets; `message` for the client, instead of a general one."""

    why: str
    message: str | None = None


@attrs.frozen
class DeriveKey:
    """Request to the caller: call `salt_password` in a thread, and send its result."""

    mechanism: SaslMechanism
    password: bytes = attrs.field(repr=False)
    salt: bytes = attrs.field(repr=False)
    iterations: int


@attrs.frozen
class FetchKeys:
    """Request to the caller: fetch the keys that sign tokens, as a token names an unknown one, then send anything."""

    key_id: str


Outcome = Challenge | Granted | Refused | DeriveKey | FetchKeys


Steps = Generator[Outcome | None, tuple[bytes, int], Outcome]


@attrs.define(eq=False, repr=False)
class SaslExchange:
    """The broker's side of one login. Its steps are those of a mechanism: `plain`, `scram` or `oauthbearer`."""

    _steps: Steps

    def __attrs_post_init__(self) -> None:
        next(self._steps)

    def send(self, data: bytes, now_ms: int) -> Outcome:
        """Take a message of the client, or the result of DeriveKey or FetchKeys. `now_ms` is since 1970."""
        try:
            outcome = self._steps.send((data, now_ms))
        except StopIteration as end:
            outcome = end.value
        return outcome or Refused("a message after the end")


class VerifierSource(Protocol):
    def verifier(self, mechanism: SaslMechanism, user: str) -> ScramVerifier | None: ...

    def decoy(self, mechanism: SaslMechanism, user: str) -> ScramVerifier: ...

    @property
    def usual_mechanism(self) -> SaslMechanism: ...


PLAIN_MESSAGE_MAX_BYTES = 2 * USER_NAME_MAX_BYTES + PASSWORD_MAX_BYTES + 2
STRONGEST_FIRST = (SaslMechanism.SCRAM_SHA_512, SaslMechanism.SCRAM_SHA_256)


def plain(users: VerifierSource) -> Steps:
    data, _ = yield None
    if len(data) > PLAIN_MESSAGE_MAX_BYTES:
        return Refused(f"a message of {len(data)} bytes; the limit is {PLAIN_MESSAGE_MAX_BYTES}")
    try:
        authorization_id, name, password = data.decode().split("\0")
    except ValueError:  # UnicodeDecodeError is one
        return Refused("a message that is not three UTF-8 strings separated by NUL")
    if not name or not password:
        return Refused("an empty user name or password")
    if authorization_id not in ("", name):
        return Refused(
            "an authorization id that is not the user's name",
            "Authentication failed: Client requested an authorization id that is different from username",
        )
    found = [mechanism for mechanism in STRONGEST_FIRST if users.verifier(mechanism, name) is not None]
    mechanism = found[0] if found else users.usual_mechanism
    known = users.verifier(mechanism, name)
    shown = known or users.decoy(mechanism, name)
    salted_password, _ = yield DeriveKey(mechanism, password.encode(), shown.salt, shown.iterations)
    stored_key = stored_key_of(mechanism, salted_password)
    if known is None:
        return Refused("no such user", INVALID_LOGIN)
    if not hmac.compare_digest(stored_key, known.stored_key):
        return Refused("a wrong password", INVALID_LOGIN)
    return Granted(name)


INVALID_LOGIN = "Authentication failed: Invalid username or password"  # Kafka's PlainSaslServer

# scramp looks up each character of a name in fifteen tables: a millisecond for a name as long as this.
SCRAM_MESSAGE_MAX_BYTES = 1024


def scram(mechanism: SaslMechanism, users: VerifierSource) -> Steps:
    scramp = load_scramp()
    asked: list[tuple[str, ScramVerifier | None]] = []  # the user's name, and the verifier if there is one

    def verifier(name: str) -> tuple[bytes, bytes, bytes, int]:
        found = users.verifier(mechanism, name)
        asked.append((name, found))
        shown = users.decoy(mechanism, name) if found is None else found
        return shown.salt, shown.stored_key, shown.server_key, shown.iterations

    server = scramp.ScramMechanism(mechanism.value).make_server(verifier)
    data, _ = yield None
    try:
        server.set_client_first(_text(data))
        data, _ = yield Challenge(server.get_server_first().encode())
        server.set_client_final(_text(data))
        name, found = asked[-1]
        if found is None:  # beyond all chance
            return Refused("no such user")
        return Granted(name, server.get_server_final().encode())
    except UnicodeDecodeError:
        return Refused("a message that is not UTF-8")
    except _TooLongError as exc:
        return Refused(str(exc))
    except scramp.ScramException as exc:
        is_unknown = bool(asked) and asked[-1][1] is None
        return Refused(f"no such user: {exc.args[0]}" if is_unknown else str(exc.args[0]))


class _TooLongError(Exception):
    pass


def _text(data: bytes) -> str:
    if len(data) > SCRAM_MESSAGE_MAX_BYTES:
        raise _TooLongError(f"a message of {len(data)} bytes; the limit is {SCRAM_MESSAGE_MAX_BYTES}")
    return data.decode()
