"""What is shown of users that there are not, so that nobody learns by asking who there is.

A decoy looks as the verifiers of real users do: it has as many iterations and as long a salt as one of them, each kind
about as often as it is there, and always the same for a name. While no user has the mechanism, it is as
`kafscale users add` would make one. Where kinds come or go, the decoys of some names change with them.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections import Counter
from collections.abc import Mapping
from typing import Final

import attrs

from kafscale.config import SaslMechanism
from kafscale.security.verifiers import DEFAULT_ITERATIONS, HASHES, MADE_SALT_BYTES, SCRAM_TYPES, ScramVerifier

KINDS_MAX_COUNT: Final = 8  # of a mechanism, the most frequent ones: what a login costs does not grow with the users


@attrs.frozen
class Kind:
    """What a challenge shows of a verifier."""

    iterations: int = DEFAULT_ITERATIONS
    salt_bytes: int = MADE_SALT_BYTES

    @classmethod
    def of(cls, verifier: ScramVerifier) -> Kind:
        return cls(verifier.iterations, len(verifier.salt))


@attrs.define(eq=False, repr=False)
class Decoys:
    """Makes decoys from a secret. Whoever keeps verifiers says which come and go."""

    secret: bytes = attrs.field(repr=False)
    _kinds: dict[SaslMechanism, Counter[Kind]] = attrs.field(
        factory=lambda: {mechanism: Counter() for mechanism in HASHES}, init=False
    )
    _frequent: dict[SaslMechanism, Mapping[Kind, int]] = attrs.field(factory=dict, init=False)  # until one changes

    def add(self, mechanism: SaslMechanism, verifier: ScramVerifier) -> None:
        """There is one more."""
        self._kinds[mechanism][Kind.of(verifier)] += 1
        self._frequent.pop(mechanism, None)

    def remove(self, mechanism: SaslMechanism, verifier: ScramVerifier) -> None:
        """There is one less."""
        kinds, kind = self._kinds[mechanism], Kind.of(verifier)
        kinds[kind] -= 1
        if not kinds[kind]:
            del kinds[kind]
        self._frequent.pop(mechanism, None)

    @property
    def usual_mechanism(self) -> SaslMechanism:
        """The mechanism that most verifiers are for; of two alike the stronger one."""
        return max(reversed(SCRAM_TYPES.values()), key=lambda mechanism: self._kinds[mechanism].total())

    def make(self, mechanism: SaslMechanism, user: str) -> ScramVerifier:
        """Make the decoy of a user. No password has its keys, as far as anybody can tell."""
        kind = self._kind(mechanism, user)
        size_bytes = hashlib.new(HASHES[mechanism]).digest_size
        return ScramVerifier(
            iterations=kind.iterations,
            salt=self._part(f"salt {mechanism} {user}", kind.salt_bytes),
            stored_key=self._part(f"stored key {mechanism} {user}", size_bytes),
            server_key=self._part(f"server key {mechanism} {user}", size_bytes),
        )

    def _kind(self, mechanism: SaslMechanism, user: str) -> Kind:
        """Choose one by weighted rendezvous hashing: few names get another kind when the counts change."""
        kinds = self._frequent.get(mechanism)
        if kinds is None:
            kinds = self._frequent[mechanism] = dict(self._kinds[mechanism].most_common(KINDS_MAX_COUNT))

        def lot(kind: Kind) -> float:
            drawn = int.from_bytes(self._part(f"{kind} {mechanism} {user}", 8), "big")
            return -math.log((drawn + 1) / (2**64 + 1)) / kinds[kind]

        return min(kinds, key=lot, default=Kind())

    def _part(self, what: str, size_bytes: int) -> bytes:
        """Return bytes that look random to whoever does not know the secret."""
        blocks = range(-(-size_bytes // hashlib.sha512().digest_size))
        return b"".join(hmac.digest(self.secret, f"{block} {what}".encode(), "sha512") for block in blocks)[:size_bytes]
