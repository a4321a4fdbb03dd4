"""Looks for transactions that nobody will end where several brokers share the bucket, and coordinators are at each.

    open at two rounds    of partitions that are led here; nearly all end before the second
    ask                   who leads partitions of `__transaction_state`, this broker among them: an answer has what it
                          knows of these producers, and the partitions that it has read completely, with their epochs
    look                  at the metadata: those are the epochs of all partitions of `__transaction_state`
    abort                 what nobody knows of, and is open still

Why nobody can know of it: a partition's enrolment is durable before the first batch of the transaction is here, so
before it was asked. An epoch that is the last one at the look was that when it answered, whoever thinks what; so it
knew all that had been decided by then. And a coordinator forgets a transaction only when each partition has its marker.
An answer that lacks a partition, as of a broker that is loading it or of one of a version without such answers, is
none: then everything stays as it is until the next round.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import attrs
import trio

from kafscale.cluster.transactions.hanging import Knowledge, Suspect, open_in
from kafscale.cluster.transactions.values import TopicPartition
from kafscale.errors import BrokerUnavailable, DamagedObject, Fenced, KafkaError, ProtocolError, StoreError
from kafscale.log.partition.partition import Partition

ROUND_SECONDS = 60.0
AT_ONCE_COUNT = 1000  # suspects of one round; the others wait for the next

logger = logging.getLogger(__name__)


@attrs.frozen
class CoordinatedBy:
    """Who leads a partition of `__transaction_state`, with which leader epoch."""

    broker_id: int
    epoch: int


@attrs.define(eq=False, kw_only=True, repr=False)
class HangingSearch:
    """`run` it beside others. `look` returns when the metadata of this moment is known here; raises StoreError, Fenced.

    `leaders` are those of the partitions of `__transaction_state`, in order; None for what nobody leads just now.
    `ask` asks a broker what its coordinators know of producers, which may be this one. `abort` aborts.
    """

    partitions: Callable[[], Iterable[Partition]]
    leaders: Callable[[], Sequence[CoordinatedBy | None]]
    ask: Callable[[int, Collection[int]], Awaitable[Knowledge]]
    look: Callable[[], Awaitable[None]]
    abort: Callable[[Sequence[Suspect]], Awaitable[None]]
    _seen: frozenset[Suspect] = attrs.field(default=frozenset(), init=False)

    async def run(self) -> None:
        """Look for them until cancelled. Raises StorageFailed."""
        while True:
            await trio.sleep(ROUND_SECONDS)
            try:
                await self.look_once()
            except (StoreError, DamagedObject, Fenced, BrokerUnavailable, ProtocolError, KafkaError) as exc:
                # Who is fenced is ended by whoever watches the lead.
                logger.debug("nobody knows whether transactions hang: %s", exc)

    async def look_once(self) -> None:
        """Abort what was open the last time, too, and is known to nobody.

        Raises BrokerUnavailable, ProtocolError, KafkaError, StoreError, DamagedObject, Fenced, StorageFailed.
        """
        now_open = frozenset(open_in(self.partitions()))
        suspects = [each for each in now_open if each in self._seen][:AT_ONCE_COUNT]
        self._seen = now_open
        if not suspects:
            return
        leaders = self.leaders()
        if None in leaders:
            return
        producer_ids = {each.transaction.producer_id for each in suspects}
        epochs: dict[int, int] = {}
        enrolled: dict[tuple[int, TopicPartition], int] = {}
        for broker_id in sorted({each.broker_id for each in leaders if each is not None}):
            known = await self.ask(broker_id, producer_ids)
            epochs |= known.epochs
            for key, epoch in known.enrolled.items():
                enrolled[key] = max(epoch, enrolled.get(key, -1))
        await self.look()
        if epochs_of(self.leaders()) != epochs:
            return
        await self.abort([each for each in suspects if not each.is_known(enrolled)])


def epochs_of(leaders: Sequence[CoordinatedBy | None]) -> Mapping[int, int | None]:
    """Return the leader epoch of each partition; None for what nobody leads."""
    return {index: None if each is None else each.epoch for index, each in enumerate(leaders)}
