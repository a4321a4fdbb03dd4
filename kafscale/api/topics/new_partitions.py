"""Changes of topics by name, and manual replica assignments. The first replica of a partition leads it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from kafscale.api.handling.partitions import catch_up_if_any
from kafscale.api.handling.services import Services
from kafscale.cluster.registries.topics import MorePartitions, NewTopic, Outcome, Topic
from kafscale.concurrency.nurseries import for_each
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_REPLICA_ASSIGNMENT, INVALID_REQUEST
from kafscale.wire.messages.topics import CreatableTopic, CreatePartitionsTopic

Asked = TypeVar("Asked", CreatableTopic, CreatePartitionsTopic)
Wanted = TypeVar("Wanted", NewTopic, MorePartitions)
Item = TypeVar("Item", bound=Hashable)
Refusal = KafkaError | None
At = tuple[str, int]  # a topic's name and a partition

AT_ONCE_COUNT = 256

logger = logging.getLogger(__name__)


async def outcomes_by_name(
    topics: Sequence[Asked],
    make: Callable[[Asked], Wanted],
    carry_out: Callable[[Sequence[Wanted]], Awaitable[Sequence[Outcome]]],
) -> dict[str, Outcome]:
    """Make and carry out a change of each topic. `make` raises KafkaError to refuse one; repeated names are refused."""
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
    outcomes = refused | {topic.name: outcome for topic, outcome in zip(wanted, results, strict=True)}
    return {name: outcomes[name] for name in counts}


async def decide_together(
    decide: Callable[[Item], Awaitable[None]], items: Sequence[Item], *, at_once_count: int = AT_ONCE_COUNT
) -> dict[Item, Refusal]:
    """Decide about at most `at_once_count` items at a time, so that decisions share a commit. Return the errors."""
    refusals: dict[Item, Refusal] = {}

    async def decide_one(item: Item) -> None:
        refusals[item] = None
        try:
            await decide(item)
        except KafkaError as exc:
            refusals[item] = exc.kept()

    await for_each(items, decide_one, tasks_count=min(at_once_count, len(items)))
    return refusals


async def know_brokers(services: Services, assignments: Iterable[Sequence[int]]) -> None:
    """Catch up with the other brokers if a broker is unknown here: it may have joined a moment ago."""
    known = {node.node_id for node in services.assignment.brokers()}
    await catch_up_if_any(services, (not known.issuperset(broker_ids) for broker_ids in assignments))


async def lead_as_assigned(services: Services, topic: Topic, assigned: Mapping[int, Sequence[int]]) -> None:
    """Move new partitions of a topic, by one commit, to the brokers that the request names; log failed moves."""

    async def move(index: int) -> None:
        await services.mover.move(topic, index, assigned[index])

    refusals = await decide_together(move, list(assigned), at_once_count=len(assigned))
    for index, refusal in refusals.items():
        if refusal is not None:
            logger.warning(
                "can't move new partition %s-%d to broker %d: %s", topic.name, index, assigned[index][0], refusal
            )


def check_assignment(broker_ids: Sequence[int], node_ids: Collection[int], replication_factor: int) -> None:
    """Check the replicas of one partition. Raises KafkaError INVALID_REPLICA_ASSIGNMENT."""
    check_brokers(broker_ids, node_ids)
    if len(broker_ids) != replication_factor:
        raise KafkaError(
            INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes a partition with {len(broker_ids)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s).",
        )


def check_brokers(broker_ids: Sequence[int], node_ids: Collection[int]) -> None:
    """Raise KafkaError INVALID_REPLICA_ASSIGNMENT for a partition without replicas, or with an unknown broker."""
    if not broker_ids:
        raise KafkaError(INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica list.")
    for broker_id in broker_ids:
        if broker_id not in node_ids:
            raise KafkaError(
                INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered.",
            )
