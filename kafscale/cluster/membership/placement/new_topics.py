"""Adds to a transaction of topics who is to lead what it creates; rows go when their topic goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs

from kafscale.cluster.membership.placement.choice import leaders_count, leaders_of_new
from kafscale.cluster.membership.records import NEXT_NUMBER_KEY, Placement, record_key, rows_of
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.registries.topic_index import TopicDraft
from kafscale.errors import KafkaError
from kafscale.formats.placements import topic_rows_prefix
from kafscale.wire.error_codes import BROKER_NOT_AVAILABLE


def place_topics(
    state: ClusterState, surplus: Mapping[int, float], draft: TopicDraft, transaction: Transaction
) -> Transaction:
    """Choose leaders among those that serve and are not being drained. Raises KafkaError if there are none to choose.

    `surplus` is what the partitions of each broker weigh beyond their number; unless it has all, numbers count alone.
    The number of brokers is part of the plan: it is made anew where one has come or gone meanwhile.
    """
    brokers = [broker_id for broker_id, record in state.live().items() if record.may_lead]
    counts = leaders_count(state.placements)
    is_known = surplus.keys() >= set(brokers)
    led = {each: counts.get(each, 0) + (surplus[each] if is_known else 0) for each in brokers}
    number = state.next_number
    puts: dict[str, bytes] = {}
    prefixes = list(transaction.delete_prefixes)
    for name, topic in draft.changes.items():
        if topic is None:
            old = draft.index.by_name.get(name)
            prefixes += [topic_rows_prefix(old.topic_id)] if old is not None else []
            continue
        row = list(state.placements.get(topic.topic_id, ()))
        new_count = topic.partition_count - len(row)
        if new_count and not brokers:
            what = "No broker may lead new partitions: each is being drained or stopped."
            raise KafkaError(BROKER_NOT_AVAILABLE, what)
        leaders = leaders_of_new(new_count, brokers, led, Counter(each.leader for each in row))
        for each in leaders:
            led[each] += 1
        first = len(row)
        row += [Placement(leader, number, number, 0) for leader in leaders]
        puts |= rows_of(topic.topic_id, row, range(first, len(row)))
    state.follower.check_readable(puts)
    if puts:
        puts[NEXT_NUMBER_KEY] = encode(number + 1)
    planned_from = transaction.planned_from
    assert planned_from is not None, "topics are planned"
    keys = {*planned_from.keys, *puts, *map(record_key, brokers)}
    return attrs.evolve(
        transaction,
        puts={**transaction.puts, **puts},
        delete_prefixes=tuple(prefixes),
        planned_from=attrs.evolve(planned_from, keys=tuple(keys)),
    )
