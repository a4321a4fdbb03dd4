"""Idempotent producers as footers and the log's end keep them (KIP-98). The rules are the partition's."""

from __future__ import annotations

from typing import Final

import attrs

NO_COORDINATOR_EPOCH: Final = -1
NO_SEQUENCE: Final = -1


@attrs.define(eq=True)
class ProducedBatch:
    """A batch that was ordered: its sequence numbers and the offsets it got.

    A transaction's marker that began a new epoch is among a producer's batches too, with NO_SEQUENCE: what follows it
    begins with sequence 0.
    """

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@attrs.define(eq=True)
class Producer:
    """One producer id: its epoch, its latest batches (oldest first) and when it was last heard of.

    `due_sequence` is that of a batch which was refused and will be sent again, of a producer without batches.
    `coordinator_epoch` is that of the latest marker of a transaction of this producer.
    """

    producer_id: int
    epoch: int
    batches: list[ProducedBatch]
    last_timestamp_ms: int
    due_sequence: int | None = None
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
