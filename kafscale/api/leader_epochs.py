"""The check of a client's leader epoch, the same in Fetch, ListOffsets and OffsetForLeaderEpoch (KIP-320)."""

from __future__ import annotations

from kafscale.errors import KafkaError
from kafscale.log.partition.partition import Partition
from kafscale.wire import error_codes

NOT_CHECKED = -1


def check_leader_epoch(partition: Partition, current_leader_epoch: int) -> None:
    """Raises KafkaError FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH if the client knows another epoch than ours."""
    if current_leader_epoch == NOT_CHECKED or current_leader_epoch == partition.leader_epoch:
        return
    older = current_leader_epoch < partition.leader_epoch
    raise KafkaError(error_codes.FENCED_LEADER_EPOCH if older else error_codes.UNKNOWN_LEADER_EPOCH)
