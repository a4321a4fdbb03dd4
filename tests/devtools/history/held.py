"""Shared resources that a broker must not hold for ever, except for its partitions.

    log         pending entries: each keeps a file, or an object, from being deleted
    pool        chunks in use
    partitions  on their way, without a leader
    changes     of placements, without a waiting caller

Requests hold some for a moment too, so the caller looks several times.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafscale.api.handling.services import Services
from kafscale.cluster.membership.start.member import SharingMember
from kafscale.log.partition.partition import Partition


def held_too_much(services: Services) -> Iterator[str]:
    log = services.log
    partitions = [*log.partitions.values(), *log.moving.values()]
    if log.moving:
        yield f"{', '.join(map(str, log.moving.values()))} is on its way"
    batches = [batch for partition in partitions for batch in partition.tail.batches]
    pending_count = sum(batch.file is not None for batch in batches)
    if log.journal.pending_count != pending_count:
        yield f"{log.journal.pending_count} entries are pending in the log, and tails have {pending_count}"
    held_bytes = _held_bytes(partitions)
    if log.pool.used_bytes != held_bytes:
        yield f"{log.pool.used_bytes} bytes of the pool are used, and tails have {held_bytes}"
    member = getattr(services.heard_of, "__self__", None)
    if isinstance(member, SharingMember) and member.writer._waiting:
        yield f"{len(member.writer._waiting)} changes of placements wait"


def _held_bytes(partitions: list[Partition]) -> int:
    leases = {
        id(batch.lease): batch.lease for partition in partitions for batch in partition.tail.batches if batch.lease
    }
    leases |= {id(holder._chunk): holder._chunk for holder in partitions if holder._chunk is not None}
    return sum(lease.held_bytes for lease in leases.values())
