"""The users whose passwords the broker knows, or rather what SCRAM keeps of them: durable before it acts.

Reads are synchronous, from memory, which follows the metadata. In the metadata, which is in the bucket too, all is
encrypted but the users' names (`kafscale.security.secret_keys`): what is kept of a password is enough to try passwords
against, and to pretend to be the broker.

Keys of the store: `scram-users/<mechanism>/<user>`.
"""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import trio

from kafscale.cluster.metadata.base import Change, MetadataStore, PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.metadata.follower import Follower
from kafscale.concurrency.turns import in_turns
from kafscale.config import SaslMechanism, Settings
from kafscale.errors import DamagedObject, KafkaError, StartupError
from kafscale.security.decoys import Decoys
from kafscale.security.secret_keys import KEY_FILE_NAME, Sealed, SecretKeys, make_key_file, read_key_file
from kafscale.security.verifiers import ScramVerifier
from kafscale.wire.error_codes import POLICY_VIOLATION, UNKNOWN_SERVER_ERROR

# All of them are in memory, 1 KiB each. Kafka has no limit.
USERS_MAX_COUNT: Final = 100_000

_PREFIX = "scram-users/"
_MECHANISMS: Final = {each.value: each for each in SaslMechanism}

logger = logging.getLogger(__name__)


@attrs.frozen
class CredentialKey:
    """Whose password, and by which mechanism."""

    mechanism: SaslMechanism
    user: str


@attrs.frozen
class _Planned:
    """An entry of the transaction under way, and its content: 40 µs of decrypting and decoding are saved by it."""

    value: bytes
    verifier: ScramVerifier


@attrs.define(eq=False, kw_only=True, repr=False)
class ScramUsers:
    """All of them. `key_file` is made when it is needed first, unless the operator has named it."""

    store: MetadataStore
    key_file: Path
    may_make_key: bool
    _keys: SecretKeys | None = attrs.field(default=None, init=False)
    _verifiers: dict[CredentialKey, ScramVerifier] = attrs.field(factory=dict, init=False)
    _unreadable: dict[CredentialKey, str] = attrs.field(factory=dict, init=False)
    _planned: dict[str, _Planned] = attrs.field(factory=dict, init=False)  # by key of the metadata
    _decoys: Decoys = attrs.field(factory=lambda: Decoys(secrets.token_bytes(32)), init=False)
    _altering: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _follower: Follower = attrs.field(init=False)

    @classmethod
    def of(cls, settings: Settings, metadata: MetadataStore) -> ScramUsers:
        return cls(store=metadata, key_file=key_file_of(settings), may_make_key=settings.sasl.secret_key_file is None)

    def __attrs_post_init__(self) -> None:
        self._follower = Follower(
            self.store, (_PREFIX,), self._apply, lambda: map(_key, (*self._verifiers, *self._unreadable))
        )

    async def load(self) -> None:
        """Read the keys, and take in the users that there are. Raises StartupError where a named key file is none."""
        keys = read_key_file(self.key_file)  # a few bytes, once, and before anybody is served
        if keys is None and not self.may_make_key:
            raise StartupError(f"--secret-key-file {self.key_file} is not there; `openssl rand -hex 32` makes a key")
        self._use(keys)
        await self._follower.load()

    async def run(self) -> None:
        """Catch up with the metadata store by listing it, where it is too far ahead, until cancelled."""
        await self._follower.run()

    def check_readable(self) -> None:
        """Raise StartupError if there is a user whose password can't be checked, as the key is another one."""
        if self._unreadable:
            key, why = next(iter(self._unreadable.items()))
            raise StartupError(
                f"the passwords of {len(self._unreadable)} users, such as {key.user}, can't be checked: {why}. Give "
                f"the key file that was used before (--secret-key-file; now it is {self.key_file}), or remove these "
                "users (`kafscale users remove`)"
            )

    def verifier(self, mechanism: SaslMechanism, user: str) -> ScramVerifier | None:
        """Return what to check the user's password against."""
        return self._verifiers.get(CredentialKey(mechanism, user))

    def decoy(self, mechanism: SaslMechanism, user: str) -> ScramVerifier:
        """Return what to show of a user that there is not."""
        return self._decoys.make(mechanism, user)

    @property
    def usual_mechanism(self) -> SaslMechanism:
        """The mechanism that most of the passwords are for."""
        return self._decoys.usual_mechanism

    def has(self, key: CredentialKey) -> bool:
        """Tell whether there is such a password, readable or not."""
        return key in self._verifiers or key in self._unreadable

    def iterations(self) -> dict[str, dict[SaslMechanism, int]]:
        """Return which users there are, and with how many iterations; 0 for what can't be read."""
        found: dict[str, dict[SaslMechanism, int]] = defaultdict(dict)
        for key, verifier in self._verifiers.items():
            found[key.user][key.mechanism] = verifier.iterations
        for key in self._unreadable:
            found[key.user][key.mechanism] = 0
        return found

    async def alter(self, changes: Mapping[CredentialKey, ScramVerifier | None]) -> None:
        """Apply all of them as one transaction; None removes. Raises KafkaError, and what the store raises."""

        async def plan(revision: int) -> Transaction:
            puts = {key: verifier for key, verifier in changes.items() if verifier is not None}
            more_count = sum(not self.has(key) for key in puts) - sum(self.has(key) for key in {*changes} - {*puts})
            if more_count > 0 and len(self._verifiers) + len(self._unreadable) + more_count > USERS_MAX_COUNT:
                raise KafkaError(POLICY_VIOLATION, f"there can't be more than {USERS_MAX_COUNT:,} passwords")
            self._planned.clear()
            if puts:
                keys = await self._keys_to_seal()
                async for key, verifier in in_turns(puts.items()):
                    name = _key(key)
                    self._planned[name] = _Planned(encode(keys.seal(name, encode(verifier))), verifier)
            return Transaction(
                puts={name: planned.value for name, planned in self._planned.items()},
                deletes=[_key(key) for key, verifier in changes.items() if verifier is None],
                planned_from=PlannedFrom(revision=revision, prefixes=(_PREFIX,)),
            )

        async with self._altering:
            try:
                await self._follower.commit_planned(plan)
            finally:
                self._planned.clear()

    async def _keys_to_seal(self) -> SecretKeys:
        """Return the keys; make them if there are none. Raises KafkaError."""
        if self._keys is None:
            try:
                keys = await trio.to_thread.run_sync(make_key_file, self.key_file)
            except StartupError as exc:
                logger.error("a user can't be added: %s", exc)
                raise KafkaError(UNKNOWN_SERVER_ERROR, "the broker can't make its key file; its log says why") from exc
            self._use(keys)
            logger.info("made %s, which encrypts what the metadata has of passwords; keep a copy of it", self.key_file)
            return keys
        return self._keys

    def _use(self, keys: SecretKeys | None) -> None:
        self._keys = keys
        if keys is not None:
            self._decoys.secret = keys.for_decoys

    def _apply(self, change: Change) -> None:
        for name in (*change.deletes, *change.puts):
            if name.startswith(_PREFIX) and (key := _credential_key(name)) is not None:
                if (former := self._verifiers.pop(key, None)) is not None:
                    self._decoys.remove(key.mechanism, former)
                self._unreadable.pop(key, None)
                if name in change.puts:
                    self._take(key, change.puts[name])

    def _take(self, key: CredentialKey, value: bytes) -> None:
        try:
            verifier = self._open(_key(key), value)
        except DamagedObject as exc:
            self._unreadable[key] = str(exc)
            logger.error("the password of user %s for %s can't be checked: %s", key.user, key.mechanism, exc)
            return
        self._verifiers[key] = verifier
        self._decoys.add(key.mechanism, verifier)

    def _open(self, name: str, value: bytes) -> ScramVerifier:
        """Return the verifier that an entry of the metadata holds. Raises DamagedObject."""
        planned = self._planned.get(name)
        if planned is not None and planned.value == value:
            return planned.verifier
        if self._keys is None:
            raise DamagedObject("there is no key file")
        return decode(ScramVerifier, self._keys.open(name, decode(Sealed, value)))


def key_file_of(settings: Settings) -> Path:
    """Return which file has the keys, or would have them."""
    return settings.sasl.secret_key_file or settings.data_dir / KEY_FILE_NAME


def _key(key: CredentialKey) -> str:
    return f"{_PREFIX}{key.mechanism}/{key.user}"


def _credential_key(name: str) -> CredentialKey | None:
    """None for a mechanism that a later version may have."""
    mechanism, _, user = name.removeprefix(_PREFIX).partition("/")
    known = _MECHANISMS.get(mechanism)
    return None if known is None else CredentialKey(known, user)
