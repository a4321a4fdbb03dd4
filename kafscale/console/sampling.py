"""Samples of each cluster that a page has shown: lags of groups and throughput, also while no page is open.

A page asks for numbers that are at most a second old; browsers that look at the same cluster share them. The task `run`
asks for them each STEP_SECONDS, as long as the cluster answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs
import trio

from kafscale.client.admin import list_topics
from kafscale.client.consumer import LATEST
from kafscale.client.groups import list_groups
from kafscale.client.lag import GroupLag, group_lags
from kafscale.client.many import offsets_of_topics
from kafscale.console.cluster import ClusterAccess
from kafscale.console.samples import GROUPS_MAX_COUNT, STEP_SECONDS, Samples
from kafscale.errors import KafScaleError
from kafscale.wire.messages.topics import MetadataResponseTopic

FRESH_SECONDS = 0.9  # pages reload each second
PARTITIONS_MAX_COUNT = 50_000  # of a cluster; the throughput of larger ones is not sampled
CLUSTERS_MAX_COUNT = 50  # users with logins; the one that looked longest ago makes room
REST_FACTOR = 20  # a list of groups is asked for again after 20 times the seconds that it took
SAMPLE_SECONDS = 30.0  # a broker that hangs for longer is not waited for


@attrs.define(eq=False, repr=False)
class ClusterSamples:
    """Samples of one user's view of a cluster. With `samples_all`, groups that no page has shown are sampled too."""

    access: ClusterAccess
    samples_all: bool
    clock: Callable[[], float] = time.monotonic
    samples: Samples = attrs.field(factory=Samples, init=False)
    _lags: dict[str, GroupLag] = attrs.field(factory=dict, init=False)
    _lags_at: dict[str, float] = attrs.field(factory=dict, init=False)
    _topics: Sequence[MetadataResponseTopic] = attrs.field(default=(), init=False)
    _ends_at: float = attrs.field(default=float("-inf"), init=False)
    _list_at: float = attrs.field(default=float("-inf"), init=False)
    _asking: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def lags(self, groups: Sequence[str]) -> dict[str, GroupLag]:
        """Return the lags of groups, those that are told, and sample them. Raises BrokerUnavailable, KafkaError."""
        self.samples.show(groups, self.clock())
        async with self._asking:
            await self._update_lags(groups)
        return {group: self._lags[group] for group in groups if group in self._lags}

    async def topics(self) -> Sequence[MetadataResponseTopic]:
        """Return the topics, and sample their throughput unless that was just done. Raises BrokerUnavailable,
        KafkaError.
        """
        async with self._asking:
            await self._update_throughput()
        return self._topics

    async def sample(self) -> None:
        """Sample all that is due; a cluster that does not answer gets no samples."""
        with trio.move_on_after(SAMPLE_SECONDS), suppress(KafScaleError):
            await self.topics()
            if self.samples_all:
                await self._add_groups()
            async with self._asking:
                await self._update_lags(self.samples.wanted(self.clock()))

    async def _add_groups(self) -> None:
        """Keep the sampled groups that exist, and add others while there is room."""
        began = self.clock()
        if began < self._list_at:
            return
        listed = await list_groups(await self.access.client())
        ended = self.clock()
        self._list_at = ended + REST_FACTOR * (ended - began)
        known = {group.group_id for group in listed}
        sampled = self.samples.wanted(ended)
        for gone in set(sampled) - known:
            self.forget(gone)
        kept = known.intersection(sampled)
        self.samples.keep(kept, ended)
        self.samples.show(sorted(known - kept)[: GROUPS_MAX_COUNT - len(kept)], ended)

    async def _update_lags(self, groups: Sequence[str]) -> None:
        due = [group for group in groups if self.clock() - self._lags_at.get(group, float("-inf")) >= FRESH_SECONDS]
        if not due:
            return
        found = await group_lags(await self.access.client(), due)
        now = self.clock()
        self._lags |= found
        self._lags_at |= dict.fromkeys(due, now)
        for group, lag in found.items():
            self.samples.put_lag(group, now, lag.total)
        for old in [group for group, at in self._lags_at.items() if now - at > 2 * STEP_SECONDS]:
            self._forget_lag(old)

    async def _update_throughput(self) -> None:
        if self.clock() - self._ends_at < FRESH_SECONDS:
            return
        client = await self.access.client()
        self._topics = await list_topics(client)
        written = [topic for topic in self._topics if not topic.is_internal]
        is_small = sum(len(topic.partitions) for topic in written) <= PARTITIONS_MAX_COUNT
        ends = await offsets_of_topics(client, written, LATEST) if is_small else {}
        self._ends_at = self.clock()
        if ends:  # else no leader answers
            self.samples.put_ends(ends, self._ends_at)

    def forget(self, group: str) -> None:
        """Forget a deleted group."""
        self.samples.forget(group)
        self._forget_lag(group)

    def _forget_lag(self, group: str) -> None:
        self._lags.pop(group, None)
        self._lags_at.pop(group, None)


@attrs.define(eq=False, repr=False)
class Sampling:
    """The samples of all clusters, by access."""

    shared: ClusterAccess
    needs_login: bool
    _clusters: dict[ClusterAccess, ClusterSamples] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        if not self.needs_login:
            self.of(self.shared)

    def of(self, access: ClusterAccess) -> ClusterSamples:
        """Return the samples of a cluster, which is sampled from now on."""
        found = self._clusters.pop(access, None) or ClusterSamples(access, samples_all=not self.needs_login)
        self._clusters[access] = found  # behind those that were shown longer ago
        if len(self._clusters) > CLUSTERS_MAX_COUNT:
            del self._clusters[next(iter(self._clusters))]
        return found

    def forget(self, access: ClusterAccess) -> None:
        """Forget a cluster whose session is over."""
        self._clusters.pop(access, None)

    async def run(self) -> None:
        """Sample all clusters until cancelled. A slow one delays no other."""
        busy: set[ClusterSamples] = set()

        async def sample(cluster: ClusterSamples) -> None:
            busy.add(cluster)
            try:
                await cluster.sample()
            finally:
                busy.discard(cluster)

        async with trio.open_nursery() as nursery:
            while True:
                for cluster in [*self._clusters.values()]:
                    if cluster not in busy:
                        nursery.start_soon(sample, cluster)
                await trio.sleep(STEP_SECONDS)
