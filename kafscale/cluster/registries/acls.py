"""The access control lists of a cluster: durable before they act. Reads are synchronous, from memory, which follows the
metadata.

Keys of the store: `acls/<hash>`, of what a list says, so that one that is added twice is there once.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

from kafscale.cluster.metadata.base import Change, MetadataStore, PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.metadata.follower import Follower
from kafscale.concurrency.turns import Turns, in_turns
from kafscale.errors import DamagedObject, KafkaError
from kafscale.security.acl_index import AclIndex
from kafscale.security.acls import CLUSTER_NAME, AclBinding, AclFilter, PatternType, Permission, ResourceType
from kafscale.wire.error_codes import INVALID_REQUEST, POLICY_VIOLATION

# All of them are in memory, a KiB each, and are looked at by every DescribeAcls. Kafka has no limit.
ACLS_MAX_COUNT = 10_000
FOUND_MAX_COUNT = 10 * ACLS_MAX_COUNT  # by the filters of one deletion together, each of which is told what it found
RESOURCE_NAME_MAX_LENGTH: Final = 1024  # as of a group's id; topics have 249
PRINCIPAL_MAX_LENGTH: Final = 1024
HOST_MAX_LENGTH: Final = 255

_PREFIX = "acls/"
_FIELDS: Final = frozenset(field.name for field in attrs.fields(AclBinding))

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class AclRegistry:
    """All of them. Who follows them is called after they have been loaded or have changed.

    One that a later version has written and that can't be read may deny anything to anybody: while there is one, nobody
    but super users may do anything here.
    """

    store: MetadataStore
    index: AclIndex = attrs.field(factory=AclIndex, init=False)
    _by_key: dict[str, AclBinding] = attrs.field(factory=dict, init=False)
    _changing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _listeners: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    _follower: Follower = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._follower = Follower(self.store, (_PREFIX,), self._apply, lambda: self._by_key)

    def follow(self, listener: Callable[[], None]) -> None:
        """Call the listener, which must not raise, after each change from now on."""
        self._listeners.append(listener)

    async def load(self) -> None:
        """Take in what was set before this broker started."""
        await self._follower.load()

    async def run(self) -> None:
        """Catch up with the metadata store by listing it, where it is too far ahead, until cancelled."""
        await self._follower.run()

    def _apply(self, change: Change) -> None:
        for key in filter(_is_ours, change.deletes):
            if (gone := self._by_key.pop(key, None)) is not None:
                self.index.remove(gone)
        for key in filter(_is_ours, change.puts):
            if (added := self._follower.read(key, change.puts[key], _binding)) is not None:
                self._by_key[key] = added
                self.index.add(added)
        self.index.may_deny_all = bool(self._follower.unreadable)
        for listener in self._listeners:
            listener()

    def matching(self, wanted: AclFilter) -> list[AclBinding]:
        """Return those that a filter asks for."""
        return [each for each in self.index if wanted.matches(each)]

    async def create(self, bindings: Sequence[AclBinding]) -> list[KafkaError | None]:
        """Add all that may be, as one transaction; why not, for each. One that is there already is no error.

        Raises what the store raises.
        """
        outcomes: list[KafkaError | None] = []

        async def plan(revision: int) -> Transaction | None:
            outcomes.clear()
            added: dict[str, AclBinding] = {}
            async for each in in_turns(bindings):
                outcomes.append(self._plan(each, added))
            puts = {key: encode(binding) async for key, binding in in_turns(added.items())}
            return Transaction(puts=puts, planned_from=_planned_from(revision)) if puts else None

        async with self._changing:
            try:
                await self._follower.commit_planned(plan)
            except KafkaError as exc:
                whole = exc.kept()
                return [whole if outcome is None else outcome for outcome in outcomes]
        return outcomes

    def _plan(self, binding: AclBinding, added: dict[str, AclBinding]) -> KafkaError | None:
        """Add a binding to those that are to be; why not, if it may not."""
        try:
            _check(binding)
        except KafkaError as exc:
            return exc.kept()
        if binding not in self.index:
            key = _key(binding)
            if key not in added and len(self.index) + len(added) >= ACLS_MAX_COUNT:
                return KafkaError(POLICY_VIOLATION, f"there can't be more than {ACLS_MAX_COUNT:,} ACLs")
            added[key] = binding
        return None

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[AclBinding]]:
        """Remove all that the filters ask for, as one transaction. Returns for each what it has found.

        Raises KafkaError, and what the store raises.
        """
        found: list[list[AclBinding]] = []

        async def plan(revision: int) -> Transaction | None:
            found[:] = await self._matching_each(filters)
            gone = {binding for bindings in found for binding in bindings}
            deletes = sorted([_key(binding) async for binding in in_turns(gone)])
            return Transaction(deletes=deletes, planned_from=_planned_from(revision)) if deletes else None

        async with self._changing:
            await self._follower.commit_planned(plan)
        return found

    async def _matching_each(self, filters: Sequence[AclFilter]) -> list[list[AclBinding]]:
        """Return for each filter what it asks for, of those that there are now. Raises KafkaError POLICY_VIOLATION."""
        bindings = list(self.index)
        by_name: dict[str, list[AclBinding]] = {}
        for each in bindings:
            by_name.setdefault(each.resource_name, []).append(each)
        turns, found, found_count = Turns(), list[list[AclBinding]](), 0
        for wanted in filters:
            asked_for: list[AclBinding] = []
            name = None if wanted.pattern_type is PatternType.MATCH else wanted.resource_name
            for each in bindings if name is None else by_name.get(name, ()):
                await turns.step()
                if wanted.matches(each):
                    asked_for.append(each)
            found.append(asked_for)
            found_count += len(asked_for)
            if found_count > FOUND_MAX_COUNT:
                raise KafkaError(
                    POLICY_VIOLATION, f"These filters ask for more than {FOUND_MAX_COUNT:,} ACLs, each counted."
                )
        return found


def _planned_from(revision: int) -> PlannedFrom:
    return PlannedFrom(revision=revision, prefixes=(_PREFIX,))


def _check(binding: AclBinding) -> None:
    """Raises KafkaError INVALID_REQUEST, in Kafka's words where it checks the same."""
    name = binding.resource_name
    if binding.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise KafkaError(INVALID_REQUEST, f"Invalid resourceType {binding.resource_type.name}")
    if binding.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise KafkaError(INVALID_REQUEST, f"Invalid patternType {binding.pattern_type.name}")
    if binding.operation < 2:
        raise KafkaError(INVALID_REQUEST, f"Invalid operation {binding.operation.name}")
    if binding.permission not in (Permission.DENY, Permission.ALLOW):
        raise KafkaError(INVALID_REQUEST, f"Invalid permissionType {binding.permission.name}")
    if not name:
        raise KafkaError(INVALID_REQUEST, "Resource name should not be empty")
    if binding.resource_type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise KafkaError(INVALID_REQUEST, f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if ":" not in binding.principal:
        raise KafkaError(
            INVALID_REQUEST,
            f"Could not parse principal from `{binding.principal}` (no colon is present separating the principal type "
            "from the principal name)",
        )
    for what, text, most in (
        ("resource name", name, RESOURCE_NAME_MAX_LENGTH),
        ("principal", binding.principal, PRINCIPAL_MAX_LENGTH),
        ("host", binding.host, HOST_MAX_LENGTH),
    ):
        if not text or len(text) > most:
            raise KafkaError(INVALID_REQUEST, f"a {what} has 1 to {most} characters")


def _binding(value: bytes) -> AclBinding | None:
    """Read one; None for one that allows what only a later version knows. Raises DamagedObject if it may deny that."""
    binding = decode(AclBinding, value)
    has_unknown = 0 in (binding.resource_type, binding.pattern_type, binding.operation, binding.permission)
    if not has_unknown and json.loads(value).keys() <= _FIELDS:  # what is added may say when or for whom it holds
        return binding
    if binding.permission is not Permission.ALLOW:
        raise DamagedObject(f"an access control list denies what is not known here: {value[:200]!r}")
    logger.warning("an access control list allows what only a later version of KafScale knows: %r", value[:200])
    return None


def _key(binding: AclBinding) -> str:
    return _PREFIX + hashlib.blake2b(encode(binding), digest_size=16).hexdigest()


def _is_ours(key: str) -> bool:
    return key.startswith(_PREFIX)
