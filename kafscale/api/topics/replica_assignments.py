"""Manual replica assignments, as CreateTopics, CreatePartitions and AlterPartitionReassignments carry them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_REPLICA_ASSIGNMENT


def check_assignment(broker_ids: Sequence[int], node_ids: Collection[int], replication_factor: int) -> None:
    """The replicas of one partition, of these brokers. Raises KafkaError INVALID_REPLICA_ASSIGNMENT."""
    check_brokers(broker_ids, node_ids)
    if len(broker_ids) != replication_factor:
        raise KafkaError(
            INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes a partition with {len(broker_ids)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s).",
        )


def check_brokers(broker_ids: Sequence[int], node_ids: Collection[int]) -> None:
    """There are replicas, all of these brokers. Raises KafkaError INVALID_REPLICA_ASSIGNMENT."""
    if not broker_ids:
        raise KafkaError(INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica list.")
    for broker_id in broker_ids:
        if broker_id not in node_ids:
            raise KafkaError(
                INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered.",
            )
