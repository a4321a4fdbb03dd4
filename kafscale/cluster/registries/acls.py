"""Access control lists of a cluster. Keys of the metadata store: `acls/<hash of the content>`."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from typing import ClassVar, Final

import attrs

from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.registries.base import EntryRegistry
from kafscale.concurrency.turns import Turns, in_turns
from kafscale.errors import DamagedObject, KafkaError
from kafscale.security.acls import CLUSTER_NAME, AclBinding, AclFilter, PatternType, Permission, ResourceType
from kafscale.security.authorizer import AclIndex
from kafscale.wire.error_codes import INVALID_REQUEST, POLICY_VIOLATION

# All ACLs are in memory, a KiB each, and every DescribeAcls looks at all. Kafka has no limit.
ACLS_MAX_COUNT = 10_000
FOUND_MAX_COUNT = 10 * ACLS_MAX_COUNT  # matches of all filters of one deletion, which are all answered
RESOURCE_NAME_MAX_LENGTH: Final = 1024  # as of a group's id; topics have 249
PRINCIPAL_MAX_LENGTH: Final = 1024
HOST_MAX_LENGTH: Final = 255

_PREFIX = "acls/"
_FIELDS: Final = frozenset(field.name for field in attrs.fields(AclBinding))

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class AclRegistry(EntryRegistry):
    """All ACLs, and the index that authorizes.

    While an ACL of a later version is unreadable, only super users have rights: it may deny anything.
    """

    PREFIXES: ClassVar = (_PREFIX,)

    index: AclIndex = attrs.field(factory=AclIndex, init=False)
    _by_key: dict[str, AclBinding] = attrs.field(factory=dict, init=False)

    def _put(self, key: str, value: bytes) -> None:
        if (added := self._follower.read(key, value, _binding)) is not None:
            self._by_key[key] = added
            self.index.add(added)

    def _delete(self, key: str) -> None:
        if (gone := self._by_key.pop(key, None)) is not None:
            self.index.remove(gone)

    def _notify(self) -> None:
        self.index.may_deny_all = bool(self._follower.unreadable)
        super()._notify()

    def matching(self, wanted: AclFilter) -> list[AclBinding]:
        return [binding for binding in self.index if wanted.matches(binding)]

    async def create(self, bindings: Sequence[AclBinding]) -> list[KafkaError | None]:
        """Add valid or existing ACLs in one transaction; return each refusal, or None. Raises as the store."""
        outcomes: list[KafkaError | None] = []

        async def plan(revision: int) -> Transaction | None:
            outcomes.clear()
            added: dict[str, AclBinding] = {}
            async for binding in in_turns(bindings):
                outcomes.append(self._plan(binding, added))
            puts = {key: encode(binding) async for key, binding in in_turns(added.items())}
            return Transaction(puts=puts, planned_from=self._planned_from(revision)) if puts else None

        try:
            await self._commit(plan)
        except KafkaError as exc:
            whole = exc.kept()
            return [whole if outcome is None else outcome for outcome in outcomes]
        return outcomes

    def _plan(self, binding: AclBinding, added: dict[str, AclBinding]) -> KafkaError | None:
        try:
            _check(binding)
        except KafkaError as exc:
            return exc.kept()
        if binding not in self.index:
            key = _key(binding)
            if key not in added and len(self.index) + len(added) >= ACLS_MAX_COUNT:
                return KafkaError(
                    POLICY_VIOLATION,
                    f"there are {ACLS_MAX_COUNT:,} ACLs, the most that a cluster may have: delete some",
                )
            added[key] = binding
        return None

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[AclBinding]]:
        """Remove what each filter matches, and return it. Raises KafkaError and as the store."""
        found: list[list[AclBinding]] = []

        async def plan(revision: int) -> Transaction | None:
            found[:] = await self._matching_each(filters)
            gone = {binding for bindings in found for binding in bindings}
            deletes = sorted([_key(binding) async for binding in in_turns(gone)])
            return Transaction(deletes=deletes, planned_from=self._planned_from(revision)) if deletes else None

        await self._commit(plan)
        return found

    async def _matching_each(self, filters: Sequence[AclFilter]) -> list[list[AclBinding]]:
        bindings = list(self.index)
        by_name: dict[str, list[AclBinding]] = {}
        for binding in bindings:
            by_name.setdefault(binding.resource_name, []).append(binding)
        turns, found, found_count = Turns(), list[list[AclBinding]](), 0
        for wanted in filters:
            asked_for: list[AclBinding] = []
            name = None if wanted.pattern_type is PatternType.MATCH else wanted.resource_name
            for binding in bindings if name is None else by_name.get(name, ()):
                await turns.step()
                if wanted.matches(binding):
                    asked_for.append(binding)
            found.append(asked_for)
            found_count += len(asked_for)
            if found_count > FOUND_MAX_COUNT:
                raise KafkaError(
                    POLICY_VIOLATION,
                    f"These filters match more than {FOUND_MAX_COUNT:,} ACLs together: send fewer filters.",
                )
        return found


def _check(binding: AclBinding) -> None:
    """Raise KafkaError INVALID_REQUEST for an invalid ACL, with Kafka's message if it checks the same."""
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
    """Decode an ACL; None if it allows something unknown to this version. Raises DamagedObject if it denies such."""
    binding = decode(AclBinding, value)
    has_unknown = 0 in (binding.resource_type, binding.pattern_type, binding.operation, binding.permission)
    if not has_unknown and json.loads(value).keys() <= _FIELDS:  # added fields may say when or for whom it holds
        return binding
    if binding.permission is not Permission.ALLOW:
        raise DamagedObject(f"an access control list denies something unknown to this version: {value[:200]!r}")
    logger.warning("ignoring an access control list that allows something only a later version knows: %r", value[:200])
    return None


def _key(binding: AclBinding) -> str:
    return _PREFIX + hashlib.blake2b(encode(binding), digest_size=16).hexdigest()
