"""Mutations of transactions: each breaks a rule, which the simulation must notice.

`simulate --short SEEDS --mutation NAME` looks for seeds that find one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, cast

import attrs

from kafscale.cluster.transactions.coordinator import TransactionCoordinator, _Ended
from kafscale.cluster.transactions.ledger import CoordinatorOutcome
from kafscale.cluster.transactions.transaction import ProducerTransaction
from kafscale.cluster.transactions.values import DUE_MAX_COUNT, TransactionState
from kafscale.log.partition.partition import Partition
from kafscale.log.partition.transactions import NEVER, Transactions
from kafscale.log.read.footers import Footers
from kafscale.log.rewrite import compaction, retention
from kafscale.log.rewrite.compaction import CleanablePart, find_cleanable
from kafscale.log.rewrite.compaction_filter import OutcomePass
from kafscale.log.rewrite.retention import NewestTimestamps, retained_from
from tests.devtools.world.determinism import replaced


@attrs.frozen(eq=False)
class _AllStable:
    partition: Partition

    @property
    def last_stable_offset(self) -> int:
        return self.partition.high_watermark

    def __getattr__(self, name: str) -> Any:
        return getattr(self.partition, name)


def _all_stable(partition: Partition) -> Partition:
    return cast(Partition, _AllStable(partition))


def _retain_nothing_open(partition: Partition, newest_ms: NewestTimestamps, now_ms: int) -> int:
    return retained_from(_all_stable(partition), newest_ms, now_ms)


async def _find_what_is_open(partition: Partition, footers: Footers, now_ms: int) -> CleanablePart:
    return attrs.evolve(await find_cleanable(_all_stable(partition), footers, now_ms), partition=partition)


@contextmanager
def _clean_what_is_open() -> Iterator[None]:
    """Ignore open transactions both in the partition and in the batches: each alone protects them."""
    nothing_open = property(lambda self: None)
    with (
        replaced(compaction, "find_cleanable", _find_what_is_open),
        replaced(OutcomePass, "first_open_offset", nothing_open),
    ):
        yield


def _abort_without_fence(self: TransactionCoordinator, *, now_ms: int) -> Iterator[CoordinatorOutcome[None]]:
    """Abort expired transactions as their producers would, who may then go on."""
    for _ in range(DUE_MAX_COUNT):
        held = self.take_due(now_ms)
        if held is None:
            return
        assert held.transaction.state is TransactionState.ONGOING, "no id is unused for so long"
        prepared = held.transaction.ended(committed=False, transaction_version=0, now_ms=now_ms)
        yield self._ended(prepared, now_ms, None)


def _same_epoch(
    self: ProducerTransaction, *, timeout_ms: int, now_ms: int, last_producer_epoch: int
) -> ProducerTransaction:
    return self.with_same_epoch(timeout_ms=timeout_ms, now_ms=now_ms)


def _decide_behind_the_markers(self: TransactionCoordinator, prepared: ProducerTransaction, now_ms: int) -> _Ended:
    ended = self._finish(prepared, prepared.partitions, now_ms, decision=(prepared.record(),))
    decision, *markers = ended.entries
    return attrs.evolve(ended, entries=(*markers, decision))


def _first_of_the_last(self: Transactions) -> int:
    return max((opened.first_offset for opened in self.open.values()), default=NEVER)


def _take_any_marker(self: Transactions, marker: object, producer: object) -> bool:
    return True


MUTATIONS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "compaction past the LSO": _clean_what_is_open,
    "retention past the LSO": partial(replaced, retention, "retained_from", _retain_nothing_open),
    "a time-out that does not fence": partial(replaced, TransactionCoordinator, "due", _abort_without_fence),
    "no new epoch for the next producer": partial(replaced, ProducerTransaction, "with_new_epoch", _same_epoch),
    "the decision behind the markers": partial(replaced, TransactionCoordinator, "_end", _decide_behind_the_markers),
    "an LSO behind an open transaction": partial(replaced, Transactions, "_first_open_offset", _first_of_the_last),
    "markers of any epoch": partial(replaced, Transactions, "check_marker", _take_any_marker),
}
