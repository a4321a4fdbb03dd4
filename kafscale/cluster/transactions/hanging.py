"""Aborts hanging transactions: open in a partition and unknown to every coordinator, so they would never end (KIP-664).

A crash leaves none, as enrolment is durable before the first batch; a lost data directory (`wal`) or an adopted bucket
may. A search takes the transactions that were already open at the last one, asks every leader of a partition of
`__transaction_state` what it knows, looks at the metadata, and aborts those that no answer has and that are open still.

That is safe: enrolment is durable before the first batch, so before the question. An epoch that is the latest at the
look was so when its leader answered, so that leader knew all earlier decisions. Coordinators forget a transaction only
when every partition has its marker. If an answer lacks a partition, the search ends without a result.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import attrs
import trio

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.errors import BrokerUnavailable, DamagedObject, Fenced, KafkaError, ProtocolError, StoreError
from kafscale.formats.transactions import OpenTransaction
from kafscale.log.partition.partition import Partition
from kafscale.wire.control_records import EndMarker

INTERVAL_SECONDS = 60.0
AT_ONCE_COUNT = 1000  # suspects of one search

logger = logging.getLogger(__name__)

Enrolled = Mapping[tuple[int, TopicPartition], int]  # producer id and partition -> epoch of the producer


@attrs.frozen(repr=False)
class Suspect:
    """An open transaction in a partition of this broker, which may hang."""

    partition: Partition = attrs.field(eq=id)
    transaction: OpenTransaction

    @property
    def is_open(self) -> bool:
        is_open = self.partition.transactions.open.get(self.transaction.producer_id) == self.transaction
        return is_open and not self.partition.closed

    @property
    def marker(self) -> EndMarker:
        """The marker that aborts the transaction, with the latest coordinator epoch that the partition knows."""
        producer = self.partition.producers.producers.get(self.transaction.producer_id)
        known_epoch = -1 if producer is None else producer.coordinator_epoch
        return EndMarker(
            producer_id=self.transaction.producer_id,
            producer_epoch=self.transaction.epoch,
            coordinator_epoch=max(0, self.transaction.coordinator_epoch, known_epoch),
            is_commit=False,
        )

    def is_known(self, enrolled: Enrolled) -> bool:
        at = TopicPartition(self.partition.topic, self.partition.index)
        return enrolled.get((self.transaction.producer_id, at), -1) >= self.transaction.epoch


@attrs.frozen(kw_only=True)
class Knowledge:
    """Answer of the coordinators of one broker: leader epochs of loaded partitions, and enrolled partitions."""

    epochs: Mapping[int, int]
    enrolled: Enrolled


@attrs.frozen
class CoordinatedBy:
    """The leader of a partition of `__transaction_state`, and its leader epoch."""

    broker_id: int
    epoch: int


@attrs.define(eq=False, kw_only=True, repr=False)
class HangingSearch:
    """Searches for hanging transactions.

    `leaders` returns the leader of each partition of `__transaction_state`, or None. `ask` asks a broker, which may be
    this one, about producers. `look` catches up with the metadata; it raises StoreError or Fenced.
    """

    partitions: Callable[[], Iterable[Partition]]
    leaders: Callable[[], Sequence[CoordinatedBy | None]]
    ask: Callable[[int, Collection[int]], Awaitable[Knowledge]]
    look: Callable[[], Awaitable[None]]
    abort: Callable[[Sequence[Suspect]], Awaitable[None]]
    _seen: frozenset[Suspect] = attrs.field(default=frozenset(), init=False)

    async def run(self) -> None:
        """Search until cancelled, first among the transactions that are open at the start. Raises StorageFailed."""
        self._seen = self._open()
        while True:
            try:
                await self.search_once()
            except (StoreError, DamagedObject, Fenced, BrokerUnavailable, ProtocolError, KafkaError) as exc:
                # The watch of the lead ends a fenced broker.
                logger.debug("the search for hanging transactions failed and will be repeated: %s", exc)
            await trio.sleep(INTERVAL_SECONDS)

    async def search_once(self) -> None:
        """Abort transactions that were already open at the last search and that no coordinator knows.

        Raises BrokerUnavailable, ProtocolError, KafkaError, StoreError, DamagedObject, Fenced, StorageFailed.
        """
        now_open = self._open()
        suspects = [suspect for suspect in now_open if suspect in self._seen][:AT_ONCE_COUNT]
        self._seen = now_open
        leaders = self.leaders()
        if not suspects or None in leaders:
            return
        producer_ids = {suspect.transaction.producer_id for suspect in suspects}
        epochs: dict[int, int] = {}
        enrolled: dict[tuple[int, TopicPartition], int] = {}
        for broker_id in sorted({leader.broker_id for leader in leaders if leader is not None}):
            known = await self.ask(broker_id, producer_ids)
            epochs |= known.epochs
            for key, epoch in known.enrolled.items():
                enrolled[key] = max(epoch, enrolled.get(key, -1))
        await self.look()
        if epochs == {index: leader and leader.epoch for index, leader in enumerate(self.leaders())}:
            await self.abort([suspect for suspect in suspects if not suspect.is_known(enrolled)])

    def _open(self) -> frozenset[Suspect]:
        return frozenset(
            Suspect(partition, transaction)
            for partition in self.partitions()
            for transaction in partition.transactions.open.values()
        )
