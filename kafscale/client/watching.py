"""Samples a whole cluster: brokers, the end of every partition, and the lag of every group, for `kafscale top`.

A sample costs a request to each leader for every `PARTITIONS_AT_ONCE_COUNT` partitions, and asks about at most
`GROUPS_AT_ONCE_COUNT` groups, in turn. Topics and groups are listed every `LISTED_SECONDS` only, as 10,000 topics take
a while. A broker that does not answer costs the ends of its own partitions, whose last ones stay.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf

import attrs
import trio

from kafscale.client.client import Client
from kafscale.client.consumer import EARLIEST, LATEST
from kafscale.client.groups import TopicPartition, committed_offsets
from kafscale.client.many import offsets_request
from kafscale.client.retrying import STALE_LEADER
from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, KafkaError
from kafscale.wire.client_rules import lag
from kafscale.wire.messages.groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kafscale.wire.messages.records import ListOffsetsResponse

LISTED_SECONDS = 10.0
ANSWER_SECONDS = 5.0  # then a broker counts as gone for this sample
PARTITIONS_AT_ONCE_COUNT = 10_000
GROUPS_AT_ONCE_COUNT = 100


@attrs.frozen(kw_only=True)
class WatchedBroker:
    """A broker of the cluster. failure: why it did not answer; None if it did."""

    broker_id: int
    address: Address
    is_controller: bool
    leads_count: int
    failure: str | None


@attrs.frozen(kw_only=True)
class WatchedGroup:
    """A group. lag: None if it has committed nothing, or could not be asked."""

    group: str
    state: str
    lag: int | None


@attrs.frozen(kw_only=True)
class Sample:
    """The state at one time. `ends` has the last known end of each partition."""

    time_seconds: float
    brokers: Sequence[WatchedBroker]
    ends: Mapping[TopicPartition, int]
    groups: Sequence[WatchedGroup]


@attrs.define(eq=False, repr=False)
class Watcher:
    """Takes samples by a client. Its bootstrap broker must answer; another client continues in `client`."""

    client: Client
    _listed_at: float = attrs.field(default=-inf, init=False)
    _nodes: dict[int, Address] = attrs.field(factory=dict, init=False)
    _controller_id: int = attrs.field(default=-1, init=False)
    _leaders: dict[TopicPartition, int] = attrs.field(factory=dict, init=False)
    _ends: dict[TopicPartition, int] = attrs.field(factory=dict, init=False)
    _starts: dict[TopicPartition, int] = attrs.field(factory=dict, init=False)
    _groups: dict[str, ListedGroup] = attrs.field(factory=dict, init=False)
    _committed: dict[str, dict[TopicPartition, int]] = attrs.field(factory=dict, init=False)
    _turn: int = attrs.field(default=0, init=False)
    _failures: dict[int, str] = attrs.field(factory=dict, init=False)

    @property
    def addresses(self) -> list[Address]:
        """Return the known brokers, by any of which a new client can go on."""
        return list(self._nodes.values())

    def list_again(self) -> None:
        """List topics and groups with the next sample."""
        self._listed_at = -inf

    async def sample(self, *, all_groups: bool = False) -> Sample:
        """Ask the cluster. Raises BrokerUnavailable, KafkaError if the bootstrap broker does not answer."""
        self._failures = {}
        if trio.current_time() - self._listed_at >= LISTED_SECONDS:
            await self._list()
        self._ends |= await self._ask(self._leaders, LATEST)
        now = trio.current_time()
        await self._ask_groups(len(self._groups) if all_groups else GROUPS_AT_ONCE_COUNT)
        return Sample(time_seconds=now, brokers=self._brokers(), ends=dict(self._ends), groups=self._watched_groups())

    async def _list(self) -> None:
        response = await self.client.metadata()
        self._nodes = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        self._controller_id = response.controller_id
        self._leaders = {
            TopicPartition(topic.name or "", partition.partition_index): partition.leader_id
            for topic in response.topics
            for partition in topic.partitions
        }
        self._ends = {place: end for place, end in self._ends.items() if place in self._leaders}
        self._starts = {}
        found: dict[str, ListedGroup] = {}
        async with trio.open_nursery() as nursery:
            for node in self._nodes:
                nursery.start_soon(self._list_groups, node, found)
        if not self._failures:
            self._committed = {group: offsets for group, offsets in self._committed.items() if group in found}
        self._groups = dict(sorted((self._groups | found if self._failures else found).items()))
        self._listed_at = trio.current_time()

    async def _list_groups(self, node: int, found: dict[str, ListedGroup]) -> None:
        try:
            with trio.fail_after(ANSWER_SECONDS):
                connection = await self.client.connection_to(self._nodes[node])
                response = await connection.request(ListGroupsRequest(), ListGroupsResponse)
        except (BrokerUnavailable, KafkaError, trio.TooSlowError) as exc:
            self._failures[node] = _why(exc)
            return
        found |= {group.group_id: group for group in response.groups}

    async def _ask(self, places: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for place in places:
            by_leader[self._leaders.get(place, -1)].append(place)
        offsets: dict[TopicPartition, int] = {}
        async with trio.open_nursery() as nursery:
            for node, of_node in by_leader.items():
                if node in self._nodes:
                    nursery.start_soon(self._ask_leader, node, of_node, timestamp, offsets)
        return offsets

    async def _ask_leader(
        self, node: int, places: Sequence[TopicPartition], timestamp: int, offsets: dict[TopicPartition, int]
    ) -> None:
        try:
            for start in range(0, len(places), PARTITIONS_AT_ONCE_COUNT):
                at_once = places[start : start + PARTITIONS_AT_ONCE_COUNT]
                request = offsets_request(
                    [(place.topic, place.partition) for place in at_once],
                    timestamp,
                    timeout_ms=int(ANSWER_SECONDS * 1000),
                )
                with trio.fail_after(ANSWER_SECONDS):
                    connection = await self.client.connection_to(self._nodes[node])
                    response = await connection.request(request, ListOffsetsResponse)
                for topic in response.topics:
                    for answer in topic.partitions:
                        if answer.error_code in STALE_LEADER:
                            self.list_again()
                        elif not answer.error_code:
                            offsets[TopicPartition(topic.name, answer.partition_index)] = answer.offset
        except (BrokerUnavailable, KafkaError, trio.TooSlowError) as exc:
            self._failures[node] = _why(exc)
            self.list_again()

    async def _ask_groups(self, count: int) -> None:
        names = list(self._groups)
        turn, self._turn = self._turn, self._turn + count
        for name in (names[(turn + index) % len(names)] for index in range(min(count, len(names)))):
            try:
                with trio.fail_after(ANSWER_SECONDS):
                    self._committed[name] = await committed_offsets(self.client, name)
            except (BrokerUnavailable, KafkaError, trio.TooSlowError):
                continue  # its last offsets stay
        wanted = {place for offsets in self._committed.values() for place in offsets} & self._leaders.keys()
        self._starts |= await self._ask(wanted - self._starts.keys(), EARLIEST)

    def _brokers(self) -> list[WatchedBroker]:
        leads = Counter(self._leaders.values())
        return [
            WatchedBroker(
                broker_id=node,
                address=address,
                is_controller=node == self._controller_id,
                leads_count=leads[node],
                failure=self._failures.get(node),
            )
            for node, address in sorted(self._nodes.items())
        ]

    def _watched_groups(self) -> list[WatchedGroup]:
        return [
            WatchedGroup(group=name, state=listed.group_state or "-", lag=self._lag(self._committed.get(name)))
            for name, listed in self._groups.items()
        ]

    def _lag(self, committed: Mapping[TopicPartition, int] | None) -> int | None:
        known = [(place, offset) for place, offset in (committed or {}).items() if place in self._ends]
        if not known:
            return None
        return sum(
            lag(offset, log_start_offset=self._starts.get(place, 0), end_offset=self._ends[place])
            for place, offset in known
        )


def _why(exc: Exception) -> str:
    return f"no answer in {ANSWER_SECONDS:g} s" if isinstance(exc, trio.TooSlowError) else str(exc)
