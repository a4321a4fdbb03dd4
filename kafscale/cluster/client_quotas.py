"""The quotas of client ids: durable before they act. Reads are synchronous, from memory.

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

from kafscale.cluster.converter import decode, encode
from kafscale.cluster.metadata.base import MetadataStore, Transaction
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
    """All of them. `on_changed` is called after they have been loaded or altered."""

    store: MetadataStore
    on_changed: Callable[[], None] = lambda: None
    _by_client: dict[str | None, Values] = attrs.field(factory=dict, init=False)
    _altering: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def load(self) -> None:
        """What was set before this broker started."""
        for entry in await self.store.list(_PREFIX):
            client_id = DEFAULT_CLIENT if entry.key == _DEFAULT else entry.key.removeprefix(_NAMED)
            self._by_client[client_id] = decode(dict[str, float], entry.value)
        self.on_changed()

    def all(self) -> Mapping[str | None, Values]:
        """By client id; None is the default."""
        return self._by_client

    def limit(self, key: str, client_id: str) -> float | None:
        """The client id's own, or else the default's; None if there is neither."""
        own = self._by_client.get(client_id, {}).get(key)
        return self._by_client.get(DEFAULT_CLIENT, {}).get(key) if own is None else own

    def has(self, key: str) -> bool:
        """Whether any client may have it."""
        return any(key in values for values in self._by_client.values())

    async def alter(self, changes: Sequence[QuotaChange]) -> None:
        """Apply all in their order, as one transaction. Raises KafkaError, and what the store raises."""
        async with self._altering:
            changed: dict[str | None, Values] = {}
            for change in changes:
                before = changed.get(change.client_id, self._by_client.get(change.client_id, {}))
                after = {**before, **change.values}
                changed[change.client_id] = {key: value for key, value in after.items() if value is not None}
            everything = {client: values for client, values in {**self._by_client, **changed}.items() if values}
            if len(everything) > max(QUOTAS_MAX_COUNT, len(self._by_client)):
                raise KafkaError(POLICY_VIOLATION, f"there can't be more than {QUOTAS_MAX_COUNT:,} client quotas")
            await self.store.commit(
                Transaction(
                    puts={_key(client): encode(dict(values)) for client, values in changed.items() if values},
                    deletes=[_key(client) for client, values in changed.items() if not values],
                )
            )
            self._by_client = everything
            self.on_changed()


def _key(client_id: str | None) -> str:
    return _DEFAULT if client_id is None else _NAMED + client_id
