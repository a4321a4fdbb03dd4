"""What a task fetches from a broker: whole batches, and which of them were aborted.

The answer to a fetch tells which transactions in it were aborted and where they begin; that they end, their markers do,
which are batches of the answer. One that has no marker there goes on behind it (KIP-98).
"""

from __future__ import annotations

import numpy as np

from kafscale.formats.transactions import AbortedTransaction
from kafscale.spark.brokers.newest import Fetched
from kafscale.spark.bucket.aborted import AbortedBatches
from kafscale.spark.bucket.batches import BatchHeaders
from kafscale.wire.batch_header import CONTROL


def aborted_in(fetched: Fetched, headers: BatchHeaders) -> AbortedBatches | None:
    """Return the transactions that were aborted, for the batches of the same answer; None if there are none."""
    if not fetched.aborted:
        return None
    markers = headers.only(headers.attributes & CONTROL != 0)
    producer_ids, offsets = markers.rows["producer_id"].astype(np.int64), markers.base_offsets
    end_offset = int(headers.next_offsets[-1])
    found: list[AbortedTransaction] = []
    for producer_id, first_offset in fetched.aborted:
        ends = offsets[(producer_ids == producer_id) & (offsets > first_offset)]
        marker_offset = int(ends[0]) if len(ends) else end_offset
        found.append(AbortedTransaction(producer_id, first_offset, marker_offset, first_offset))
    return AbortedBatches.of(found)
