"""Tests of what CreateTopics and CreatePartitions share."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from kafscale.api.topics.new_partitions import outcomes_by_name
from kafscale.cluster.registries.topics import MorePartitions, Outcome
from kafscale.errors import KafkaError
from kafscale.wire import error_codes
from kafscale.wire.messages.topics import CreatePartitionsTopic


async def test_outcomes_are_in_the_order_of_the_names_whether_they_were_refused_or_not(autojump_clock) -> None:
    carried_out: list[str] = []

    def make(topic: CreatePartitionsTopic) -> MorePartitions:
        if topic.name == "bad":
            raise KafkaError(error_codes.INVALID_PARTITIONS, "bad")
        return MorePartitions(name=topic.name, partition_count=topic.count)

    async def carry_out(wanted: Sequence[MorePartitions]) -> Sequence[Outcome]:
        carried_out.extend(each.name for each in wanted)
        return [KafkaError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, each.name) for each in wanted]

    asked = [
        CreatePartitionsTopic(name=name, count=2, assignments=None) for name in ("a", "twice", "bad", "b", "twice")
    ]
    outcomes = await outcomes_by_name(asked, make, carry_out)
    assert carried_out == ["a", "b"]
    assert [(name, outcome.code) for name, outcome in outcomes.items() if isinstance(outcome, KafkaError)] == [
        ("a", error_codes.UNKNOWN_TOPIC_OR_PARTITION),
        ("twice", error_codes.INVALID_REQUEST),
        ("bad", error_codes.INVALID_PARTITIONS),
        ("b", error_codes.UNKNOWN_TOPIC_OR_PARTITION),
    ]


async def test_a_refused_request_is_freed_without_the_collector_of_cycles(autojump_clock) -> None:
    """Each kept error had the frames with all others: 260,000 objects of a CreateTopics were freed at one stroke."""

    def make(topic: CreatePartitionsTopic) -> MorePartitions:
        try:
            raise ValueError(topic.name)
        except ValueError as exc:
            raise KafkaError(error_codes.INVALID_PARTITIONS, "bad") from exc

    async def carry_out(wanted: Sequence[MorePartitions]) -> Sequence[Outcome]:
        return []

    gc.collect()
    gc.disable()
    try:
        asked = [CreatePartitionsTopic(name=f"t{number}", count=2, assignments=None) for number in range(1000)]
        outcomes = await outcomes_by_name(asked, make, carry_out)
        assert len(outcomes) == 1000
        del asked, outcomes
        assert gc.collect() < 500
    finally:
        gc.enable()
