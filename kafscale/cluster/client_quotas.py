"""The quotas of users, client ids and IP addresses: durable before they act. Reads are synchronous, from memory, which
follows the metadata.

What an entity is, and which one applies to a client, is in `kafscale.cluster.quota_entities`.

Keys of the store: `client-quotas/client-id/<id>` and `client-quotas/default-client-id`, as since there are quotas, and
`quotas/<entity>` for all other entities.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import trio

from kafscale.cluster.metadata.base import Change, MetadataStore, PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.metadata.follower import Follower
from kafscale.cluster.quota_entities import (
    CLIENT_PREFIX,
    CONNECTION_CREATION_RATE,
    OTHERS_PREFIX,
    Limit,
    Limits,
    QuotaEntity,
)
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import POLICY_VIOLATION

# Each is looked at by every DescribeClientQuotas. Kafka has no limit; entities that need one of their own are few.
QUOTAS_MAX_COUNT = 10_000

_PREFIXES = (CLIENT_PREFIX, OTHERS_PREFIX)

Values = Mapping[str, float]  # by key

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class QuotaChange:
    """What is to be set for an entity; a value of None removes a key."""

    entity: QuotaEntity
    values: Mapping[str, float | None]


@attrs.define(eq=False, repr=False)
class ClientQuotas:
    """All of them. Who follows them is called after they have been loaded or altered."""

    store: MetadataStore
    _by_entity: dict[QuotaEntity, Values] = attrs.field(factory=dict, init=False)  # another one after each change
    _limits: Mapping[str, Limits] = attrs.field(factory=dict, init=False)  # by key
    _altering: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _listeners: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    _follower: Follower = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._follower = Follower(self.store, _PREFIXES, self._apply, lambda: [each.key for each in self._by_entity])

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
        by_entity = dict(self._by_entity)
        for key in filter(_is_quota, change.deletes):
            if (entity := QuotaEntity.parse(key)) is not None:
                by_entity.pop(entity, None)
        for key in filter(_is_quota, change.puts):
            if (entity := QuotaEntity.parse(key)) is None:
                logger.warning("%s limits what only a later version of KafScale knows, and nothing here", key)
            elif (values := self._follower.read(key, change.puts[key], partial(decode, dict[str, float]))) is not None:
                by_entity[entity] = values
        self._by_entity, self._limits = by_entity, _limits_of(by_entity)
        for listener in self._listeners:
            listener()

    def all(self) -> Mapping[QuotaEntity, Values]:
        """Return what is set, by entity."""
        return self._by_entity

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """Return what applies to a client; None if nothing does."""
        limits = self._limits.get(key)
        return None if limits is None else limits.limit(user, client_id)

    def connection_rate(self, address: str) -> float | None:
        """Return how many connections a canonical address may make in a second; None for any number."""
        limits = self._limits.get(CONNECTION_CREATION_RATE)
        return None if limits is None else limits.ip_limit(address)

    def has(self, key: str) -> bool:
        """Tell whether a value of this key is set for any entity."""
        return key in self._limits

    async def alter(self, changes: Sequence[QuotaChange]) -> None:
        """Apply all in their order, as one transaction. Raises KafkaError, and what the store raises."""

        async def plan(revision: int) -> Transaction:
            changed: dict[QuotaEntity, Values] = {}
            async for change in in_turns(changes):
                before = changed.get(change.entity, self._by_entity.get(change.entity, {}))
                after = {**before, **change.values}
                changed[change.entity] = {key: value for key, value in after.items() if value is not None}
            added_count = sum(bool(values) and entity not in self._by_entity for entity, values in changed.items())
            removed_count = sum(not values and entity in self._by_entity for entity, values in changed.items())
            if added_count > removed_count and len(self._by_entity) + added_count - removed_count > QUOTAS_MAX_COUNT:
                raise KafkaError(POLICY_VIOLATION, f"there can't be more than {QUOTAS_MAX_COUNT:,} client quotas")
            return Transaction(
                puts={each.key: encode(dict(values)) async for each, values in in_turns(changed.items()) if values},
                deletes=[entity.key for entity, values in changed.items() if not values],
                planned_from=PlannedFrom(revision=revision, prefixes=_PREFIXES),
            )

        async with self._altering:
            await self._follower.commit_planned(plan)


def _limits_of(by_entity: Mapping[QuotaEntity, Values]) -> Mapping[str, Limits]:
    by_key: dict[str, list[tuple[QuotaEntity, float]]] = defaultdict(list)
    for entity, values in by_entity.items():
        for key, value in values.items():
            by_key[key].append((entity, value))
    return {key: Limits.of(entities) for key, entities in by_key.items()}


def _is_quota(key: str) -> bool:
    return key.startswith(_PREFIXES)
