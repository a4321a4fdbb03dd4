"""Hanging transactions: open in a partition, but unknown to every coordinator, so that they would never end (KIP-664).

Consumers of committed records would wait for such a transaction for ever. A crash leaves none, as enrolment is durable
before the first batch. A lost data directory (`wal`) or an adopted bucket may: the bucket can have the batch and not
the enrolment. A transaction whose coordinator knows only an older epoch of its producer hangs too, as the partition
would refuse the marker.

    collect   transactions that were open at the last search as well, in partitions that are led here; nearly all others
              end before the next search
    ask       every leader of a partition of `__transaction_state`, this broker included: the answer has the partitions
              that it has loaded completely, with their epochs, and what these producers have enrolled there
    look      at the metadata: the epochs in the answers must be those of all partitions of `__transaction_state`
    abort     transactions that no answer has and that are still open

Why an unknown transaction can be aborted: enrolment is durable before the first batch arrives here, so before the
question. An epoch that is still the latest at the look was the latest when its leader answered, so that leader knew all
earlier decisions. A coordinator forgets a transaction only when every partition has its marker. An answer without some
partition (a broker that loads it, or one of a version that does not know the question) proves nothing: then everything
stays as it is until the next search.
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
AT_ONCE_COUNT = 1000  # suspects of one search; the others wait for the next

logger = logging.getLogger(__name__)

Enrolled = Mapping[tuple[int, TopicPartition], int]  # producer id and partition -> epoch of the producer


@attrs.frozen(repr=False)
class Suspect:
    """An open transaction in a partition that is led here, which may hang."""

    partition: Partition = attrs.field(eq=id)
    transaction: OpenTransaction

    @property
    def is_open(self) -> bool:
        is_open = self.partition.transactions.open.get(self.transaction.producer_id) == self.transaction
        return is_open and not self.partition.closed

    @property
    def marker(self) -> EndMarker:
        """The marker that aborts it, with the latest coordinator epoch that the partition knows."""
        producer = self.partition.producers.producers.get(self.transaction.producer_id)
        known_epoch = -1 if producer is None else producer.coordinator_epoch
        return EndMarker(
            producer_id=self.transaction.producer_id,
            producer_epoch=self.transaction.epoch,
            coordinator_epoch=max(0, self.transaction.coordinator_epoch, known_epoch),
            is_commit=False,
        )

    def is_known(self, enrolled: Enrolled) -> bool:
        """Tell whether a coordinator will end it."""
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
    """Searches while `run` runs.

    `leaders` returns the leaders of the partitions of `__transaction_state`, in order; None for a partition that has no
    leader. `ask` asks a broker, which may be this one, about producers. `look` returns when the metadata of this moment
    is known here; it raises StoreError or Fenced. `abort` aborts transactions.
    """

    partitions: Callable[[], Iterable[Partition]]
    leaders: Callable[[], Sequence[CoordinatedBy | None]]
    ask: Callable[[int, Collection[int]], Awaitable[Knowledge]]
    look: Callable[[], Awaitable[None]]
    abort: Callable[[Sequence[Suspect]], Awaitable[None]]
    _seen: frozenset[Suspect] = attrs.field(default=frozenset(), init=False)

    async def run(self) -> None:
        """Search until cancelled; at first among the transactions that are open at the start. Raises StorageFailed."""
        self._seen = self._open()
        while True:
            try:
                await self.search_once()
            except (StoreError, DamagedObject, Fenced, BrokerUnavailable, ProtocolError, KafkaError) as exc:
                # The watch of the lead ends a broker that is fenced.
                logger.debug("the search for hanging transactions failed, and is repeated: %s", exc)
            await trio.sleep(INTERVAL_SECONDS)

    async def search_once(self) -> None:
        """Abort transactions that were open at the last search, too, and that no coordinator knows.

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
