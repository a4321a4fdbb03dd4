"""SCRAM credentials of users. Keys of the metadata store: `scram-users/<mechanism>/<user>`.

The values are encrypted (`kafscale.security.secret_keys`), as the metadata is in the bucket too: with a credential one
can try passwords and impersonate the broker.
"""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

import attrs
import trio

from kafscale.cluster.metadata.base import MetadataStore, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.registries.base import EntryRegistry
from kafscale.concurrency.turns import in_turns
from kafscale.config import SaslMechanism, Settings
from kafscale.errors import DamagedObject, KafkaError, StartupError
from kafscale.security.secret_keys import KEY_FILE_NAME, Sealed, SecretKeys, make_key_file, read_key_file
from kafscale.security.verifiers import Decoys, ScramVerifier
from kafscale.wire.error_codes import POLICY_VIOLATION, UNKNOWN_SERVER_ERROR

# All credentials are in memory, 1 KiB each. Kafka has no limit.
USERS_MAX_COUNT: Final = 100_000

_PREFIX = "scram-users/"
_MECHANISMS: Final = {mechanism.value: mechanism for mechanism in SaslMechanism}

logger = logging.getLogger(__name__)


@attrs.frozen
class CredentialKey:
    """The mechanism and the user of a password."""

    mechanism: SaslMechanism
    user: str


@attrs.frozen
class _Planned:
    """An entry of the current transaction, with its content: this saves 40 µs of decrypting and decoding."""

    value: bytes
    verifier: ScramVerifier


@attrs.define(eq=False, kw_only=True, repr=False)
class ScramUsers(EntryRegistry):
    """All users. `key_file` is created when it is first needed, unless the operator has named one."""

    PREFIXES: ClassVar = (_PREFIX,)

    key_file: Path
    may_make_key: bool
    _secret_keys: SecretKeys | None = attrs.field(default=None, init=False)
    _verifiers: dict[CredentialKey, ScramVerifier] = attrs.field(factory=dict, init=False)
    _unreadable: dict[CredentialKey, str] = attrs.field(factory=dict, init=False)
    _planned: dict[str, _Planned] = attrs.field(factory=dict, init=False)  # by key of the metadata
    _decoys: Decoys = attrs.field(factory=lambda: Decoys(secrets.token_bytes(32)), init=False)

    @classmethod
    def of(cls, settings: Settings, metadata: MetadataStore) -> ScramUsers:
        return cls(store=metadata, key_file=key_file_of(settings), may_make_key=settings.sasl.secret_key_file is None)

    async def load(self) -> None:
        """Read the key file and the users. Raises StartupError if the operator's key file can't be used."""
        keys = read_key_file(self.key_file)  # a few bytes, once, and before a client is served
        if keys is None and not self.may_make_key:
            raise StartupError(f"--secret-key-file {self.key_file} is not there; `openssl rand -hex 32` makes a key")
        self._use(keys)
        await super().load()

    def check_readable(self) -> None:
        """Raise StartupError if a password can't be checked, as after the key file was replaced."""
        if self._unreadable:
            key, why = next(iter(self._unreadable.items()))
            raise StartupError(
                f"the passwords of {len(self._unreadable)} users, such as {key.user}, can't be checked: {why}. Give "
                f"the key file that was used before (--secret-key-file; now it is {self.key_file}), or remove these "
                "users (`kafscale users remove`)"
            )

    def verifier(self, mechanism: SaslMechanism, user: str) -> ScramVerifier | None:
        return self._verifiers.get(CredentialKey(mechanism, user))

    def decoy(self, mechanism: SaslMechanism, user: str) -> ScramVerifier:
        """Return a verifier to show for a user that does not exist."""
        return self._decoys.make(mechanism, user)

    @property
    def usual_mechanism(self) -> SaslMechanism:
        return self._decoys.usual_mechanism

    def has(self, key: CredentialKey) -> bool:
        """Tell whether the user has a password, readable or not."""
        return key in self._verifiers or key in self._unreadable

    def iterations(self) -> dict[str, dict[SaslMechanism, int]]:
        """Return the iterations of each user's passwords by mechanism; 0 for an unreadable password."""
        found: dict[str, dict[SaslMechanism, int]] = defaultdict(dict)
        for key, verifier in self._verifiers.items():
            found[key.user][key.mechanism] = verifier.iterations
        for key in self._unreadable:
            found[key.user][key.mechanism] = 0
        return found

    async def alter(self, changes: Mapping[CredentialKey, ScramVerifier | None]) -> None:
        """Apply all changes in one transaction; None removes. Raises KafkaError and the store's errors."""

        async def plan(revision: int) -> Transaction:
            puts = {key: verifier for key, verifier in changes.items() if verifier is not None}
            more_count = sum(not self.has(key) for key in puts) - sum(self.has(key) for key in {*changes} - {*puts})
            if more_count > 0 and len(self._verifiers) + len(self._unreadable) + more_count > USERS_MAX_COUNT:
                raise KafkaError(
                    POLICY_VIOLATION,
                    f"there are {USERS_MAX_COUNT:,} passwords, the most that a cluster may have: remove some",
                )
            self._planned.clear()
            if puts:
                keys = await self._keys_to_seal()
                async for key, verifier in in_turns(puts.items()):
                    name = _key(key)
                    self._planned[name] = _Planned(encode(keys.seal(name, encode(verifier))), verifier)
            return Transaction(
                puts={name: planned.value for name, planned in self._planned.items()},
                deletes=[_key(key) for key, verifier in changes.items() if verifier is None],
                planned_from=self._planned_from(revision),
            )

        try:
            await self._commit(plan)
        finally:
            self._planned.clear()

    async def _keys_to_seal(self) -> SecretKeys:
        if self._secret_keys is None:
            try:
                keys = await trio.to_thread.run_sync(make_key_file, self.key_file)
            except StartupError as exc:
                logger.error("can't add a user: %s", exc)
                raise KafkaError(UNKNOWN_SERVER_ERROR, "the broker can't make its key file: see its log") from exc
            self._use(keys)
            logger.info(
                "made %s, which encrypts the credentials in the metadata: keep a copy of this file", self.key_file
            )
            return keys
        return self._secret_keys

    def _use(self, keys: SecretKeys | None) -> None:
        self._secret_keys = keys
        if keys is not None:
            self._decoys.secret = keys.for_decoys

    def _delete(self, key: str) -> None:
        if (credential := _credential_key(key)) is not None:
            if (former := self._verifiers.pop(credential, None)) is not None:
                self._decoys.remove(credential.mechanism, former)
            self._unreadable.pop(credential, None)

    def _put(self, key: str, value: bytes) -> None:
        self._delete(key)
        if (credential := _credential_key(key)) is None:
            return
        try:
            verifier = self._open(key, value)
        except DamagedObject as exc:
            self._unreadable[credential] = str(exc)
            logger.error("can't check the %s password of user %s: %s", credential.mechanism, credential.user, exc)
            return
        self._verifiers[credential] = verifier
        self._decoys.add(credential.mechanism, verifier)

    def _open(self, name: str, value: bytes) -> ScramVerifier:
        planned = self._planned.get(name)
        if planned is not None and planned.value == value:
            return planned.verifier
        if self._secret_keys is None:
            raise DamagedObject("there is no key file")
        return decode(ScramVerifier, self._secret_keys.open(name, decode(Sealed, value)))


def key_file_of(settings: Settings) -> Path:
    return settings.sasl.secret_key_file or settings.data_dir / KEY_FILE_NAME


def _key(key: CredentialKey) -> str:
    return f"{_PREFIX}{key.mechanism}/{key.user}"


def _credential_key(name: str) -> CredentialKey | None:
    """Parse a key of the store; None for a mechanism of a later version."""
    mechanism, _, user = name.removeprefix(_PREFIX).partition("/")
    known = _MECHANISMS.get(mechanism)
    return None if known is None else CredentialKey(known, user)
