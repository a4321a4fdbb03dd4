"""Leaving out what was aborted: which reads meet which transactions, and which batches are theirs.

Which transactions were aborted is found by `kafscale.spark.bucket.outcomes`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from kafscale.formats.transactions import AbortedTransaction
from kafscale.spark.bucket.batches import BatchHeaders
from kafscale.wire.batch_header import TRANSACTIONAL


def shared_out(
    aborted: Sequence[AbortedTransaction], start_offsets: Sequence[int]
) -> Sequence[Sequence[AbortedTransaction]]:
    """Give each of some reads, which follow one another from these offsets on, the transactions that it meets."""
    shares: list[list[AbortedTransaction]] = [[] for _ in start_offsets]
    for each in aborted:
        first = max(0, bisect_right(start_offsets, each.first_offset) - 1)
        for share in shares[first : bisect_left(start_offsets, each.marker_offset)]:
            share.append(each)
    return shares


@attrs.frozen(eq=False, repr=False)
class AbortedBatches:
    """Tells batches of aborted transactions from others, many at once.

    An array element per transaction, in order of producer and first offset, which are one number in `_places`: the rank
    of the producer among all, and that of the offset.
    """

    _producer_ids: NDArray[np.int64]  # each once, in order
    _first_offsets: NDArray[np.int64]  # of all, in order
    _places: NDArray[np.int64]
    _marker_offsets: NDArray[np.int64]  # in the order of the places

    @classmethod
    def of(cls, transactions: Sequence[AbortedTransaction]) -> AbortedBatches | None:
        """None if there are none."""
        if not transactions:
            return None
        rows = np.array([attrs.astuple(each)[:3] for each in transactions], np.int64)
        producer_ids, first_offsets = np.unique(rows[:, 0]), np.sort(rows[:, 1])
        places = _place(producer_ids, first_offsets, rows[:, 0], rows[:, 1])
        order = np.argsort(places)
        return cls(producer_ids, first_offsets, places[order], rows[order, 2])

    def among(self, headers: BatchHeaders) -> NDArray[np.bool_]:
        """Tell of each batch whether it was aborted."""
        producer_ids, base_offsets = headers.rows["producer_id"].astype(np.int64), headers.base_offsets
        places = _place(self._producer_ids, self._first_offsets, producer_ids, base_offsets)
        found = np.searchsorted(self._places, places, side="right") - 1  # the latest that begins before it
        rank_count = len(self._first_offsets) + 1
        is_aborted: NDArray[np.bool_] = np.isin(producer_ids, self._producer_ids) & (found >= 0)
        is_aborted &= self._places[found] // rank_count == places // rank_count
        is_aborted &= base_offsets < self._marker_offsets[found]
        is_aborted &= headers.attributes & TRANSACTIONAL != 0
        return is_aborted


def _place(
    producer_ids: NDArray[np.int64],
    first_offsets: NDArray[np.int64],
    of_producer: NDArray[np.int64],
    at_offset: NDArray[np.int64],
) -> NDArray[np.int64]:
    rank = np.searchsorted(producer_ids, of_producer)
    return rank * (len(first_offsets) + 1) + np.searchsorted(first_offsets, at_offset, side="right")
