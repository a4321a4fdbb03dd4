"""SASL exchanges: one for each login, which ends with a user's name or a refusal.

    PLAIN (RFC 4616)         client  [AUTHORIZATION-ID] NUL USER NUL PASSWORD
    SCRAM-SHA-256 and -512   client  n,,n=USER,r=NONCE              server  r=NONCE+OURS,s=SALT,i=ITERATIONS
    (RFC 5802, RFC 7677)     client  c=biws,r=NONCE+OURS,p=PROOF    server  v=SIGNATURE

An exchange takes messages and returns outcomes, without I/O. It asks its caller to derive keys, which takes
milliseconds of CPU, or to fetch the keys that sign tokens, and continues with the result (`resume`).

PLAIN checks the password against the SCRAM verifier, so passwords are kept in one form. An unknown user takes as long
as a known one, and fails at the end like a wrong password. SCRAM without channel binding: a client that demands it
(`p=`), or sends an authorization id, is refused.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Protocol

import attrs

from kafscale.config import SaslMechanism
from kafscale.login.scram import load_scramp
from kafscale.security.verifiers import PASSWORD_MAX_BYTES, USER_NAME_MAX_BYTES, ScramVerifier, stored_key_of


@attrs.frozen
class Challenge:
    """Message that the client has to answer."""

    data: bytes


@attrs.frozen
class Granted:
    """Successful login. The client gets `data`; `expires_at_ms` is a token's, since 1970."""

    name: str
    data: bytes = b""
    expires_at_ms: int | None = None


@attrs.frozen
class Refused:
    """Failed login.

    `why` is for the log, without secrets; `message` is for the client, instead of a general one.
    """

    why: str
    message: str | None = None


@attrs.frozen
class DeriveKey:
    """Request to the caller: call `salt_password` in a thread, then `resume` with its result."""

    mechanism: SaslMechanism
    password: bytes = attrs.field(repr=False)
    salt: bytes = attrs.field(repr=False)
    iterations: int


@attrs.frozen
class FetchKeys:
    """Request to the caller: fetch the keys that sign tokens, as a token names an unknown one, then `resume`."""

    key_id: str


Outcome = Challenge | Granted | Refused | DeriveKey | FetchKeys


class SaslExchange(Protocol):
    """The broker's side of one mechanism, for one login."""

    def receive(self, data: bytes, now_ms: int) -> Outcome:
        """Take a message of the client. `now_ms` is since 1970."""
        ...

    def resume(self, result: bytes, now_ms: int) -> Outcome:
        """Continue after DeriveKey with the derived bytes, or after FetchKeys."""
        ...


class VerifierSource(Protocol):
    def verifier(self, mechanism: SaslMechanism, user: str) -> ScramVerifier | None: ...

    def decoy(self, mechanism: SaslMechanism, user: str) -> ScramVerifier:
        """Return the verifier to show for an unknown user."""
        ...

    @property
    def usual_mechanism(self) -> SaslMechanism: ...


PLAIN_MESSAGE_MAX_BYTES = 2 * USER_NAME_MAX_BYTES + PASSWORD_MAX_BYTES + 2
STRONGEST_FIRST = (SaslMechanism.SCRAM_SHA_512, SaslMechanism.SCRAM_SHA_256)


@attrs.define(eq=False, repr=False)
class PlainExchange:
    users: VerifierSource
    _name: str = attrs.field(default="", init=False)
    _mechanism: SaslMechanism = attrs.field(default=STRONGEST_FIRST[0], init=False)
    _known: ScramVerifier | None = attrs.field(default=None, init=False)

    def receive(self, data: bytes, now_ms: int) -> Outcome:
        if len(data) > PLAIN_MESSAGE_MAX_BYTES:
            return Refused(f"a message of {len(data)} bytes; the limit is {PLAIN_MESSAGE_MAX_BYTES}")
        try:
            authorization_id, self._name, password = data.decode().split("\0")
        except ValueError:  # UnicodeDecodeError is one
            return Refused("a message that is not three UTF-8 strings separated by NUL")
        if not self._name or not password:
            return Refused("an empty user name or password")
        if authorization_id not in ("", self._name):
            return Refused(
                "an authorization id that is not the user's name",
                "Authentication failed: Client requested an authorization id that is different from username",
            )
        found = [mechanism for mechanism in STRONGEST_FIRST if self.users.verifier(mechanism, self._name) is not None]
        self._mechanism = found[0] if found else self.users.usual_mechanism
        self._known = self.users.verifier(self._mechanism, self._name)
        shown = self._known or self.users.decoy(self._mechanism, self._name)
        return DeriveKey(self._mechanism, password.encode(), shown.salt, shown.iterations)

    def resume(self, result: bytes, now_ms: int) -> Outcome:
        stored_key = stored_key_of(self._mechanism, result)
        if self._known is None:
            return Refused("no such user", INVALID_LOGIN)
        if not hmac.compare_digest(stored_key, self._known.stored_key):
            return Refused("a wrong password", INVALID_LOGIN)
        return Granted(self._name)


INVALID_LOGIN = "Authentication failed: Invalid username or password"  # Kafka's PlainSaslServer


if TYPE_CHECKING:
    from scramp.core import ScramServer

# scramp looks up each character of a name in fifteen tables: a millisecond for a name as long as this.
SCRAM_MESSAGE_MAX_BYTES = 1024


@attrs.define(eq=False, repr=False)
class ScramExchange:
    mechanism: SaslMechanism
    users: VerifierSource
    _server: ScramServer = attrs.field(init=False)
    _name: str = attrs.field(default="", init=False)
    _is_known: bool = attrs.field(default=False, init=False)
    _is_challenged: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._server = load_scramp().ScramMechanism(self.mechanism.value).make_server(self._verifier)

    def receive(self, data: bytes, now_ms: int) -> Outcome:
        from scramp import ScramException

        if len(data) > SCRAM_MESSAGE_MAX_BYTES:
            return Refused(f"a message of {len(data)} bytes; the limit is {SCRAM_MESSAGE_MAX_BYTES}")
        try:
            text = data.decode()
            if not self._is_challenged:
                self._is_challenged = True
                self._server.set_client_first(text)
                return Challenge(self._server.get_server_first().encode())
            self._server.set_client_final(text)
            if not self._is_known:  # beyond all chance
                return Refused("no such user")
            return Granted(self._name, self._server.get_server_final().encode())
        except UnicodeDecodeError:
            return Refused("a message that is not UTF-8")
        except ScramException as exc:
            return Refused(str(exc.args[0]) if self._is_known or not self._name else f"no such user: {exc.args[0]}")

    def resume(self, result: bytes, now_ms: int) -> Outcome:
        raise AssertionError("SCRAM asks for nothing")

    def _verifier(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        """Return the values that scramp needs for the client's user name."""
        found = self.users.verifier(self.mechanism, name)
        self._name, self._is_known = name, found is not None
        shown = self.users.decoy(self.mechanism, name) if found is None else found
        return shown.salt, shown.stored_key, shown.server_key, shown.iterations
