"""Commits of however many offsets, without holding up the event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kafscale.cluster.groups.common.events import Identity
from kafscale.cluster.groups.common.records import OffsetAndMetadata, TopicPartition
from kafscale.cluster.groups.consumer.offset_checks import MEMBER_EPOCH_SINCE
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.concurrency.signals import OneShot
from kafscale.wire.error_codes import NONE

COMMIT_PIECE_COUNT = 1000  # offsets at a time: 2 ms of the event loop


async def commit_in_pieces(
    groups: GroupCoordinator,
    group_id: str,
    identity: Identity,
    *,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    check: Callable[[TopicPartition], int] = lambda at: NONE,
    version: int = MEMBER_EPOCH_SINCE,
) -> Mapping[TopicPartition, int]:
    """Commit offsets as `GroupCoordinator.commit` does; return an error code for each of those that are not committed.

    More than COMMIT_PIECE_COUNT are committed so many at a time, in order. After an error of a piece no more are
    tried. `check` gives the error code of a partition when its piece is about to be committed: while the ones before
    it were, its topic may have been deleted.
    """
    refused: dict[TopicPartition, int] = {}
    pending = list(offsets)
    for start in range(0, len(pending), COMMIT_PIECE_COUNT):
        piece = pending[start : start + COMMIT_PIECE_COUNT]
        refused |= {at: error_code for at in piece if (error_code := check(at)) != NONE}
        wanted = {at: offsets[at] for at in piece if at not in refused}
        committing = groups.commit(group_id, identity, wanted, version=version) if wanted else OneShot(NONE)
        error_code = await committing.wait()
        if error_code != NONE:
            return dict.fromkeys(pending[start:], error_code) | refused
    return refused
