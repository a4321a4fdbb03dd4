"""What the mechanisms of SASL have in common: one exchange of messages, which ends with a name or without one.

An exchange is sans-IO. It takes a message and says what comes of it. Two things it can't do by itself: a derivation of
keys, which takes milliseconds of CPU time, and fetching keys that sign tokens. It asks for these, and goes on with what
came of them (`resume`).
"""

from __future__ import annotations

from typing import Protocol

import attrs

from kafscale.config import SaslMechanism
from kafscale.security.verifiers import ScramVerifier


@attrs.frozen
class Challenge:
    """The client has to answer this."""

    data: bytes


@attrs.frozen
class Granted:
    """The client is who it says. `data` is told to it; `expires_at_ms` is since 1970, of a token."""

    name: str
    data: bytes = b""
    expires_at_ms: int | None = None


@attrs.frozen
class Refused:
    """The client is not who it says.

    `why` is for the broker's log, and may have no secret in it; `message` is for the client, instead of one that tells
    nothing.
    """

    why: str
    message: str | None = None


@attrs.frozen
class DeriveKey:
    """Somebody has to call `salt_password` with this, in a thread, and to `resume` with its result."""

    mechanism: SaslMechanism
    password: bytes = attrs.field(repr=False)
    salt: bytes = attrs.field(repr=False)
    iterations: int


@attrs.frozen
class FetchKeys:
    """Somebody may fetch the keys that sign tokens, as a token names one that is not known; then `resume`."""

    key_id: str


Outcome = Challenge | Granted | Refused | DeriveKey | FetchKeys


class Exchange(Protocol):
    """The broker's side of one mechanism, for one login."""

    def receive(self, data: bytes, now_ms: int) -> Outcome:
        """Take a message of the client. `now_ms` is since 1970."""
        ...

    def resume(self, result: bytes, now_ms: int) -> Outcome:
        """Go on after DeriveKey, with the derived bytes, or after FetchKeys, with nothing."""
        ...


class VerifierSource(Protocol):
    """Where the verifiers of users are."""

    def verifier(self, mechanism: SaslMechanism, user: str) -> ScramVerifier | None: ...

    def decoy(self, mechanism: SaslMechanism, user: str) -> ScramVerifier:
        """Return what to show of a user that there is not."""
        ...

    @property
    def usual_mechanism(self) -> SaslMechanism:
        """The mechanism that most verifiers are for."""
        ...
