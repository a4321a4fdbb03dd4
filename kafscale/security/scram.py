"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), by the library scramp.

    client  n,,n=USER,r=NONCE                    server  r=NONCE+OURS,s=SALT,i=ITERATIONS
    client  c=biws,r=NONCE+OURS,p=PROOF          server  v=SIGNATURE

Nothing here takes long: the client derives the keys. A user that there is not gets a salt like any other, and fails at
the end like a wrong password. Channel binding is not offered, so that a client which insists on it (`p=`) is refused;
so is one that wants to act for somebody else (an authorization id).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from kafscale.config import SaslMechanism
from kafscale.login.scram import load_scramp
from kafscale.security.exchanges import Challenge, Granted, Outcome, Refused, VerifierSource

if TYPE_CHECKING:
    from scramp.core import ScramServer

# scramp looks at each character of a name in fifteen tables: a millisecond for so many.
MESSAGE_MAX_BYTES = 1024


@attrs.define(eq=False, repr=False)
class ScramExchange:
    """The broker's side of one login."""

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

        if len(data) > MESSAGE_MAX_BYTES:
            return Refused(f"a message of {len(data)} bytes; the limit is {MESSAGE_MAX_BYTES}")
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
            return Refused("a message that is no text")
        except ScramException as exc:
            return Refused(str(exc.args[0]) if self._is_known or not self._name else f"no such user: {exc.args[0]}")

    def resume(self, result: bytes, now_ms: int) -> Outcome:
        raise AssertionError("SCRAM asks for nothing")

    def _verifier(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        """Return what scramp asks for, by the name that the client sent."""
        found = self.users.verifier(self.mechanism, name)
        self._name, self._is_known = name, found is not None
        shown = self.users.decoy(self.mechanism, name) if found is None else found
        return shown.salt, shown.stored_key, shown.server_key, shown.iterations
