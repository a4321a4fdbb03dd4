"""Numbers of topics for pages: records, bytes, rate, and lag of the groups that read them.

Each costs a request or two for all topics of a page. What a broker does not answer is None, and a dash on the page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import attrs

from kafscale.client.brokers import At
from kafscale.client.client import Client
from kafscale.client.consumer import EARLIEST, LATEST
from kafscale.client.groups import list_groups
from kafscale.client.many import LogSizes, log_sizes, offsets_of_groups, offsets_of_topics
from kafscale.errors import BrokerUnavailable, KafkaError
from kafscale.lru import LruCache
from kafscale.wire.client_rules import lag
from kafscale.wire.messages.topics import MetadataResponseTopic

DOLLARS_PER_GIB_MONTH = 0.023  # S3 Standard, the first 50 TB, us-east-1, 2025; requests are not counted
GIB = 1 << 30
BUCKET_SCHEMES = ("s3://",)
GROUPS_MAX_COUNT = 500  # with more, a list of topics would ask for too many offsets: it shows no lag
GROUPS_AGAIN_SECONDS = 60.0  # after which groups are counted again
RATED_TOPICS_MAX_COUNT = 20_000
RATE_LEAST_SECONDS = 1.0
RATE_PERIOD_SECONDS = 10.0


@attrs.define
class _Samples:
    """Two samples of the sum of a topic's ends, the older one for the rate."""

    base: tuple[float, int]
    recent: tuple[float, int]


@attrs.define(eq=False, repr=False)
class Rates:
    """Records a second of topics, from the ends that pages saw."""

    clock: Callable[[], float] = time.monotonic
    _samples: LruCache[str, _Samples] = attrs.field(factory=lambda: LruCache(RATED_TOPICS_MAX_COUNT), init=False)

    def note(self, topic: str, ends_sum: int) -> float | None:
        """Note the present sum of ends; return records a second since an earlier sample, None for the first one."""
        now = self.clock()
        samples = self._samples.get(topic)
        if samples is None or ends_sum < samples.base[1]:  # a topic that was deleted and created again
            self._samples.put(topic, _Samples((now, ends_sum), (now, ends_sum)))
            return None
        if now - samples.recent[0] >= RATE_PERIOD_SECONDS:
            samples.base, samples.recent = samples.recent, (now, ends_sum)
        since_seconds, since = now - samples.base[0], samples.base[1]
        return None if since_seconds < RATE_LEAST_SECONDS else (ends_sum - since) / since_seconds


@attrs.frozen(kw_only=True)
class TopicFacts:
    """A topic and its numbers. `lags` is by group, None where groups were not asked."""

    topic: MetadataResponseTopic
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    sizes: Mapping[int, int]
    rate: float | None = None
    lags: Mapping[str, int] | None = None
    is_in_bucket: bool = False

    @property
    def name(self) -> str:
        return self.topic.name or ""

    @property
    def partition_count(self) -> int:
        return len(self.topic.partitions)

    @property
    def replication(self) -> int:
        return max((len(partition.replica_nodes) for partition in self.topic.partitions), default=0)

    @property
    def leaderless_count(self) -> int:
        return sum(partition.leader_id < 0 for partition in self.topic.partitions)

    @property
    def record_count(self) -> int | None:
        """Return the distance of the ends, which is more than the records of a compacted topic."""
        known = self.ends.keys() & self.starts.keys()
        return sum(self.ends[index] - self.starts[index] for index in known) if known else None

    @property
    def size_bytes(self) -> int | None:
        return sum(self.sizes.values()) if self.sizes else None

    @property
    def dollars_per_month(self) -> float | None:
        if not self.is_in_bucket or self.size_bytes is None:
            return None
        return self.size_bytes / GIB * DOLLARS_PER_GIB_MONTH

    @property
    def lag(self) -> int | None:
        """Return the lag of the group that is furthest behind."""
        return max(self.lags.values(), default=None) if self.lags is not None else None


@attrs.define(eq=False, repr=False)
class TopicFactsReader:
    """Reads facts for one user's client, and keeps the samples of rates."""

    rates: Rates = attrs.field(factory=Rates)
    clock: Callable[[], float] = time.monotonic
    _too_many_groups_until: float = attrs.field(default=0.0, init=False)

    async def read(
        self, client: Client, topics: Sequence[MetadataResponseTopic], *, with_lag: bool = True
    ) -> list[TopicFacts]:
        """Return the facts of topics, in their order. Raises BrokerUnavailable, KafkaError."""
        starts = by_topic(await offsets_of_topics(client, topics, EARLIEST))
        ends = by_topic(await offsets_of_topics(client, topics, LATEST))
        sizes = await log_sizes(client, topics)
        bytes_of = by_topic(sizes.bytes)
        lags = await self._lags(client, starts, ends) if with_lag else None
        in_bucket = is_in_bucket(sizes)
        facts = []
        for topic in topics:
            name = topic.name or ""
            of_topic = ends.get(name, {})
            facts.append(
                TopicFacts(
                    topic=topic,
                    starts=starts.get(name, {}),
                    ends=of_topic,
                    sizes=bytes_of.get(name, {}),
                    rate=self.rates.note(name, sum(of_topic.values())) if of_topic else None,
                    lags=None if lags is None else lags.get(name, {}),
                    is_in_bucket=in_bucket,
                )
            )
        return facts

    async def _lags(
        self, client: Client, starts: Mapping[str, Mapping[int, int]], ends: Mapping[str, Mapping[int, int]]
    ) -> dict[str, dict[str, int]] | None:
        """Return the lag of each group by topic, None where there are too many groups or they can't be listed."""
        if self.clock() < self._too_many_groups_until:
            return None
        try:
            groups = [group.group_id for group in await list_groups(client)]
        except (BrokerUnavailable, KafkaError):
            return None
        if len(groups) > GROUPS_MAX_COUNT:
            self._too_many_groups_until = self.clock() + GROUPS_AGAIN_SECONDS
            return None
        lags: dict[str, dict[str, int]] = {}
        for group, committed in (await offsets_of_groups(client, groups)).items():
            for (name, index), offset in committed.items():
                start, end = starts.get(name, {}).get(index), ends.get(name, {}).get(index)
                if start is not None and end is not None:
                    of_topic = lags.setdefault(name, {})
                    of_topic[group] = of_topic.get(group, 0) + lag(offset, log_start_offset=start, end_offset=end)
        return lags


def is_in_bucket(sizes: LogSizes) -> bool:
    return bool(sizes.directories) and all(name.startswith(BUCKET_SCHEMES) for name in sizes.directories)


def by_topic(numbers: Mapping[At, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (name, index), number in numbers.items():
        found.setdefault(name, {})[index] = number
    return found
