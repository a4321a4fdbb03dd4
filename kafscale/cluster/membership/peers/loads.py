"""Loads that brokers have reported to the controller, and their age (decision 0048). Pure but for a clock.

Loads count while all brokers report theirs. A broker that has just begun has not measured yet: balance waits. A broker
that has not reported for PATIENCE_SECONDS is of an earlier version; then only the number of partitions counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

import attrs
import trio

from kafscale.formats.manifest import PartitionId
from kafscale.log.load import TOLD_MOST_COUNT, BrokerLoad
from kafscale.wire.messages.brokers import Load, PartitionLoad, TopicLoad

FRESH_SECONDS = 20.0  # in which a broker reports a few times
CARRIED_SECONDS = 45.0  # in which the present leader of a partition has measured it
PATIENCE_SECONDS = 30.0
CARRIED_MOST_COUNT = 50_000  # partitions, those reported last: of 250 brokers


@attrs.frozen
class Loads:
    """Bytes a second: of the busiest partitions by topic id and index, and by leader, of each of its others."""

    busiest: Mapping[bytes, Mapping[int, float]]
    others: Mapping[int, float]
    is_known: bool = True


UNKNOWN = Loads({}, {}, is_known=False)


@attrs.frozen
class _Told:
    incarnation: int
    load: BrokerLoad
    at: float


@attrs.define(eq=False, repr=False)
class HeardLoads:
    """Loads that were reported to this broker; complete if it is the controller."""

    clock: Callable[[], float] = trio.current_time
    _told: dict[int, _Told] = attrs.field(factory=dict, init=False)
    _busiest: dict[PartitionId, tuple[float, float]] = attrs.field(factory=dict, init=False)  # and when it was told
    _missed_since: dict[int, float] = attrs.field(factory=dict, init=False)

    def take(self, broker_id: int, incarnation: int, load: BrokerLoad) -> None:
        now = self.clock()
        self._told[broker_id] = _Told(incarnation, load, now)
        for partition_id, bytes_per_second in load.busiest.items():
            self._busiest.pop(partition_id, None)
            self._busiest[partition_id] = bytes_per_second, now
        while len(self._busiest) > CARRIED_MOST_COUNT:
            del self._busiest[next(iter(self._busiest))]

    def look(self, brokers: Mapping[int, int]) -> Loads | None:
        """Return the loads of these brokers, given as incarnations by id; None while it is worth to wait."""
        now = self.clock()
        told = {broker_id: self.of_broker(broker_id, incarnation) for broker_id, incarnation in brokers.items()}
        missed = [broker_id for broker_id, load in told.items() if load is None]
        self._missed_since = {broker: self._missed_since.get(broker, now) for broker in missed}
        if any(now - since > PATIENCE_SECONDS for since in self._missed_since.values()):
            return UNKNOWN
        known = {broker_id: load for broker_id, load in told.items() if load is not None and load.is_settled}
        if len(known) < len(told):
            return None
        return Loads(self._current(now), {broker: load.of_others for broker, load in known.items()})

    def of_broker(self, broker_id: int, incarnation: int) -> BrokerLoad | None:
        told = self._told.get(broker_id)
        is_fresh = told is not None and told.incarnation == incarnation and self.clock() - told.at <= FRESH_SECONDS
        return told.load if told is not None and is_fresh else None

    def _current(self, now: float) -> Mapping[bytes, Mapping[int, float]]:
        self._busiest = {
            partition_id: known for partition_id, known in self._busiest.items() if now - known[1] <= CARRIED_SECONDS
        }
        return by_topic(
            (partition_id, bytes_per_second) for partition_id, (bytes_per_second, _) in self._busiest.items()
        )


def by_topic(loads: Iterable[tuple[PartitionId, float]]) -> Mapping[bytes, Mapping[int, float]]:
    found: dict[bytes, dict[int, float]] = {}
    for (topic_id, index), bytes_per_second in loads:
        found.setdefault(topic_id, {})[index] = bytes_per_second
    return found


def load_message(load: BrokerLoad) -> Load:
    return Load(
        is_settled=load.is_settled,
        busiest=[
            TopicLoad(
                topic_id=topic_id,
                partitions=[
                    PartitionLoad(partition_index=index, bytes_per_second=int(load)) for index, load in row.items()
                ],
            )
            for topic_id, row in by_topic(load.busiest.items()).items()
        ],
        others_count=load.others_count,
        others_bytes_per_second=load.others_bytes_per_second,
    )


def load_of(message: Load) -> BrokerLoad:
    """Return the load of a heartbeat, with bounds: any client may send one."""
    told = (
        ((topic.topic_id, partition.partition_index), max(0, partition.bytes_per_second))
        for topic in message.busiest
        for partition in topic.partitions
    )
    return BrokerLoad(
        is_settled=message.is_settled,
        busiest=dict(islice(told, TOLD_MOST_COUNT)),
        others_count=max(0, message.others_count),
        others_bytes_per_second=max(0, message.others_bytes_per_second),
    )
