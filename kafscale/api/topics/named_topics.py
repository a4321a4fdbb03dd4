"""What CreateTopics and CreatePartitions share: topics by name, each to be named once, and an outcome for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from kafscale.cluster.registries.topics import MorePartitions, NewTopic, Outcome
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_REQUEST
from kafscale.wire.messages.topics import CreatableTopic, CreatePartitionsTopic

Asked = TypeVar("Asked", CreatableTopic, CreatePartitionsTopic)
Wanted = TypeVar("Wanted", NewTopic, MorePartitions)


async def outcomes_by_name(
    topics: Sequence[Asked],
    make: Callable[[Asked], Wanted],
    carry_out: Callable[[Sequence[Wanted]], Awaitable[Sequence[Outcome]]],
) -> dict[str, Outcome]:
    """Carry out what is made of each topic, all at once; the outcomes are in the order in which the names came first.

    `make` raises KafkaError for a topic that is refused by itself. One that is named twice is refused.
    """
    counts = Counter(topic.name for topic in topics)
    refused: dict[str, Outcome] = {}
    wanted: list[Wanted] = []
    async for topic in in_turns(topics):
        try:
            if counts[topic.name] > 1:
                raise KafkaError(INVALID_REQUEST, "Duplicate topic name.")
            wanted.append(make(topic))
        except KafkaError as exc:
            refused[topic.name] = exc.kept()
    results = await carry_out(wanted)
    outcomes = refused | {each.name: outcome for each, outcome in zip(wanted, results, strict=True)}
    return {name: outcomes[name] for name in counts}
