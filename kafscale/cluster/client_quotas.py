"""The quotas of client ids: durable before they act. Reads are synchronous, from memory, which follows the metadata.

A quota is that of one client id, or the default of all that have none of their own; in Kafka's terms the entity
`client-id` with a name or without. Each key counts for itself: a client id with a rate for consuming alone has the
default's for producing.

Keys of the store: `client-quotas/client-id/<id>` and `client-quotas/default-client-id`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs
import trio

from kafscale.cluster.metadata.base import Change, MetadataStore, PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.metadata.follower import Follower
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import POLICY_VIOLATION

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
DEFAULT_CLIENT: Final = None
# Each is looked at by every DescribeClientQuotas. Kafka has no limit; clients that need one of their own are few.
QUOTAS_MAX_COUNT = 10_000

_PREFIX = "client-quotas/"
_NAMED = "client-quotas/client-id/"
_DEFAULT = "client-quotas/default-client-id"

Values = Mapping[str, float]  # by key


@attrs.frozen(kw_only=True)
class QuotaChange:
    """What is to be set for a client id, or as the default; a value of None removes a key."""

    client_id: str | None
    values: Mapping[str, float | None]


@attrs.define(eq=False)
class ClientQuotas:
    """All of them. Who follows them is called after they have been loaded or altered."""

    store: MetadataStore
    _by_client: dict[str | None, Values] = attrs.field(factory=dict, init=False)  # another one after each change
    _altering: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _listeners: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    _follower: Follower = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._follower = Follower(self.store, (_PREFIX,), self._apply, lambda: map(_key, self._by_client))

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
        by_client = dict(self._by_client)
        for key in filter(_is_quota, change.deletes):
            by_client.pop(_client_id(key), None)
        for key in filter(_is_quota, change.puts):
            by_client[_client_id(key)] = decode(dict[str, float], change.puts[key])
        self._by_client = by_client
        for listener in self._listeners:
            listener()

    def all(self) -> Mapping[str | None, Values]:
        """Return what is set, by client id; the key None is the default."""
        return self._by_client

    def limit(self, key: str, client_id: str) -> float | None:
        """The client id's own, or else the default's; None if there is neither."""
        own = self._by_client.get(client_id, {}).get(key)
        return self._by_client.get(DEFAULT_CLIENT, {}).get(key) if own is None else own

    def has(self, key: str) -> bool:
        """Tell whether a value of this key is set for any client."""
        return any(key in values for values in self._by_client.values())

    async def alter(self, changes: Sequence[QuotaChange]) -> None:
        """Apply all in their order, as one transaction. Raises KafkaError, and what the store raises."""

        async def plan(revision: int) -> Transaction:
            changed: dict[str | None, Values] = {}
            for change in changes:
                before = changed.get(change.client_id, self._by_client.get(change.client_id, {}))
                after = {**before, **change.values}
                changed[change.client_id] = {key: value for key, value in after.items() if value is not None}
            clients = {client for client, values in {**self._by_client, **changed}.items() if values}
            if len(clients) > max(QUOTAS_MAX_COUNT, len(self._by_client)):
                raise KafkaError(POLICY_VIOLATION, f"there can't be more than {QUOTAS_MAX_COUNT:,} client quotas")
            return Transaction(
                puts={_key(client): encode(dict(values)) for client, values in changed.items() if values},
                deletes=[_key(client) for client, values in changed.items() if not values],
                planned_from=PlannedFrom(revision=revision, prefixes=(_PREFIX,)),
            )

        async with self._altering:
            await self._follower.commit_planned(plan)


def _key(client_id: str | None) -> str:
    return _DEFAULT if client_id is None else _NAMED + client_id


def _client_id(key: str) -> str | None:
    return DEFAULT_CLIENT if key == _DEFAULT else key.removeprefix(_NAMED)


def _is_quota(key: str) -> bool:
    return key.startswith(_PREFIX)
