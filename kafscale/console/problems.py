"""Present problems of a cluster, each with the page where to act."""

from __future__ import annotations

import time
from collections.abc import Sequence
from urllib.parse import quote, urlencode

import attrs

from kafscale.client.brokers import DescribedBroker
from kafscale.client.client import Client
from kafscale.client.transactions import describe_transaction, list_transactions
from kafscale.console.samples import Samples
from kafscale.errors import KafkaError
from kafscale.wire.messages.topics import MetadataResponseTopic
from kafscale.wire.messages.transactions import DescribedTransaction

ONGOING = "Ongoing"
LONG_MS = 5 * 60_000  # Kafka aborts a transaction after transaction.timeout.ms, 1 min by default
SHOWN_MAX_COUNT = 10  # of one kind


@attrs.frozen
class Problem:
    text: str
    path: str


def of_brokers(brokers: Sequence[DescribedBroker]) -> list[Problem]:
    return [
        Problem(f"Broker {broker.broker_id} is fenced: it does not serve.", "/brokers")
        for broker in brokers
        if broker.is_fenced
    ]


def of_topics(topics: Sequence[MetadataResponseTopic]) -> list[Problem]:
    """Return the topics with partitions that no broker leads."""
    found = []
    for topic in topics:
        leaderless_count = sum(partition.leader_id < 0 for partition in topic.partitions)
        if leaderless_count:
            name = topic.name or ""
            text = f"Topic {name}: {leaderless_count} of {len(topic.partitions)} partitions have no leader."
            found.append(Problem(text, f"/topics/{quote(name, safe='')}"))
    if len(found) > SHOWN_MAX_COUNT:
        rest = Problem(f"{len(found) - SHOWN_MAX_COUNT} more topics have partitions without a leader.", "/topics")
        return [*found[:SHOWN_MAX_COUNT], rest]
    return found


def of_lags(samples: Samples, now_seconds: float) -> list[Problem]:
    """Return the groups whose lag grows, the largest growth first."""
    growing = sorted(samples.growing(now_seconds).items(), key=lambda item: -item[1])
    return [
        Problem(
            f"Group {group}: the lag grows, by {grown:,.0f} in 5 minutes.", f"/groups/one?{urlencode({'group': group})}"
        )
        for group, grown in growing[:SHOWN_MAX_COUNT]
    ]


async def of_transactions(client: Client) -> list[Problem]:
    """Return transactions that are open for long. Raises BrokerUnavailable."""
    return [
        Problem(
            f"Transaction of {found.transactional_id}: open for {duration_ms(found) // 60_000} minutes; consumers that "
            "read committed records wait for it.",
            f"/transactions/one?{urlencode({'id': found.transactional_id})}",
        )
        for found in await long_transactions(client)
    ]


async def long_transactions(client: Client) -> list[DescribedTransaction]:
    """Return the open transactions of more than LONG_MS, at most SHOWN_MAX_COUNT. Raises BrokerUnavailable."""
    found = []
    try:
        for listed in await list_transactions(client, [ONGOING], longer_than_ms=LONG_MS):
            described = await describe_transaction(client, listed.transactional_id)
            if described.transaction_state == ONGOING and duration_ms(described) > LONG_MS:
                found.append(described)
            if len(found) == SHOWN_MAX_COUNT:
                break
    except KafkaError:  # the broker does not know these requests, or just now has no coordinator
        pass
    return found


def duration_ms(transaction: DescribedTransaction) -> int:
    """Return for how long a transaction is open, 0 if none is."""
    begun_ms = transaction.transaction_start_time_ms
    return max(0, round(time.time() * 1000) - begun_ms) if begun_ms > 0 else 0
