"""PLAIN (RFC 4616): the password itself, checked against what SCRAM keeps of it.

    client  [AUTHORIZATION-ID] NUL USER NUL PASSWORD

So there is no second form in which passwords are kept. A user that there is not takes as long as one that there is.
"""

from __future__ import annotations

import hmac

import attrs

from kafscale.config import SaslMechanism
from kafscale.security.exchanges import DeriveKey, Granted, Outcome, Refused, VerifierSource
from kafscale.security.verifiers import (
    PASSWORD_MAX_BYTES,
    USER_NAME_MAX_BYTES,
    ScramVerifier,
    stored_key_of,
)

MESSAGE_MAX_BYTES = 2 * USER_NAME_MAX_BYTES + PASSWORD_MAX_BYTES + 2
STRONGEST_FIRST = (SaslMechanism.SCRAM_SHA_512, SaslMechanism.SCRAM_SHA_256)


@attrs.define(eq=False, repr=False)
class PlainExchange:
    """The broker's side of one login."""

    users: VerifierSource
    _name: str = attrs.field(default="", init=False)
    _mechanism: SaslMechanism = attrs.field(default=STRONGEST_FIRST[0], init=False)
    _known: ScramVerifier | None = attrs.field(default=None, init=False)

    def receive(self, data: bytes, now_ms: int) -> Outcome:
        if len(data) > MESSAGE_MAX_BYTES:
            return Refused(f"a message of {len(data)} bytes; the limit is {MESSAGE_MAX_BYTES}")
        try:
            authorization_id, self._name, password = data.decode().split("\0")
        except ValueError:  # UnicodeDecodeError is one
            return Refused("a message that is not three texts with a NUL between them")
        if not self._name or not password:
            return Refused("a user name or a password that is empty")
        if authorization_id not in ("", self._name):
            return Refused(
                "an authorization id that is not the user's name",
                "Authentication failed: Client requested an authorization id that is different from username",
            )
        found = [each for each in STRONGEST_FIRST if self.users.verifier(each, self._name) is not None]
        self._mechanism = found[0] if found else self.users.usual_mechanism
        self._known = self.users.verifier(self._mechanism, self._name)
        shown = self._known or self.users.decoy(self._mechanism, self._name)
        return DeriveKey(self._mechanism, password.encode(), shown.salt, shown.iterations)

    def resume(self, result: bytes, now_ms: int) -> Outcome:
        stored_key = stored_key_of(self._mechanism, result)
        if self._known is None:
            return Refused("no such user", INVALID)
        if not hmac.compare_digest(stored_key, self._known.stored_key):
            return Refused("a wrong password", INVALID)
        return Granted(self._name)


INVALID = "Authentication failed: Invalid username or password"  # Kafka's PlainSaslServer
