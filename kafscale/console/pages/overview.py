"""The first page: brokers, throughput, lag, and present problems with links."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from starlette.responses import Response
from starlette.routing import Route

from kafscale.client.brokers import list_brokers
from kafscale.client.groups import list_groups
from kafscale.console import problems
from kafscale.console.pages.base import PageRequest, view
from kafscale.console.pages.fields import now_ms
from kafscale.console.plots import number, plot, spark
from kafscale.console.sampling import ClusterSamples

SHOWN_COUNT = 10  # of groups and of topics
LARGE_COUNT = 2_000  # partitions and groups, from which on the page is reloaded less often


@attrs.frozen
class Top:
    """A topic or group, its last value and its hour."""

    name: str
    value: str
    spark: str


async def overview(page: PageRequest) -> Response:
    client, samples = await page.client(), page.samples
    brokers = await list_brokers(client)
    topics = await samples.topics()
    groups = await list_groups(client)
    if len(groups) <= SHOWN_COUNT:
        await samples.lags([group.group_id for group in groups])
    now = samples.clock()
    partitions_count = sum(len(topic.partitions) for topic in topics)
    return page.render(
        "overview_live.html" if page.is_fragment else "overview.html",
        brokers=brokers,
        topics_count=len(topics),
        partitions_count=partitions_count,
        groups_count=len(groups),
        problems=[
            *problems.of_brokers(brokers),
            *problems.of_topics(topics),
            *await problems.of_transactions(client),
            *problems.of_lags(samples.samples, now),
        ],
        throughput=plot(
            "Throughput",
            [("All topics", samples.samples.throughput.last_hour(now))],
            now_ms(),
            unit="records/s",
        ),
        busiest=_busiest(samples, now),
        lagging=_lagging(samples, now),
        every=2_000 if partitions_count + len(groups) <= LARGE_COUNT else 10_000,
    )


def _busiest(samples: ClusterSamples, now: float) -> Sequence[Top]:
    rates = {topic: series.latest(now) or 0.0 for topic, series in samples.samples.topics.items()}
    largest = sorted((topic for topic in rates if rates[topic]), key=lambda topic: -rates[topic])[:SHOWN_COUNT]
    return [
        Top(topic, f"{number(rates[topic])}/s", spark(samples.samples.topics[topic].last_hour(now)))
        for topic in largest
    ]


def _lagging(samples: ClusterSamples, now: float) -> Sequence[Top]:
    lags = {group: series.latest(now) or 0.0 for group, series in samples.samples.lags.items()}
    largest = sorted((group for group in lags if lags[group]), key=lambda group: -lags[group])[:SHOWN_COUNT]
    return [Top(group, number(lags[group]), spark(samples.samples.lags[group].last_hour(now))) for group in largest]


ROUTES = [Route("/", view(overview))]
