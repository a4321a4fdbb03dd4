"""Partitions of one internal topic that this broker leads, each with the state that its records add up to.

A key is coordinated by the leader of the partition that it hashes to, by Java's `String.hashCode` as in Kafka. Until a
load is finished its keys get COORDINATOR_LOAD_IN_PROGRESS, keys of partitions that are led elsewhere NOT_COORDINATOR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, Generic, Protocol, TypeVar

import attrs

from kafscale.errors import KafkaError
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.control_records import EndMarker
from kafscale.wire.error_codes import COORDINATOR_LOAD_IN_PROGRESS, NONE, NOT_COORDINATOR
from kafscale.wire.records import Record

REMEMBERED_COUNT: Final = 4096  # keys, as each request of a group or a transaction asks; 2 us for 8 characters
REMEMBERED_MAX_LENGTH: Final = 256  # of a key: what clients send may be much longer, and takes memory


def coordinator_partition(key: str, partition_count: int) -> int:
    """Return the partition of `__consumer_offsets` or `__transaction_state` that a group or transactional id is in."""
    if len(key) > REMEMBERED_MAX_LENGTH:
        return _partition_of(key, partition_count)
    return _remembered(key, partition_count)


def _partition_of(key: str, partition_count: int) -> int:
    number = java_hash(key)
    # Kafka's `Utils.abs`: the one number whose negation does not fit is taken for 0.
    return (0 if number == -(1 << 31) else abs(number)) % partition_count


_remembered = lru_cache(REMEMBERED_COUNT)(_partition_of)


def java_hash(text: str) -> int:
    """Return what `hashCode` of a Java string returns: over its UTF-16 units, as a signed 32-bit number."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    number = 0
    for at in range(0, len(encoded), 2):
        number = (31 * number + (encoded[at] << 8) + encoded[at + 1]) & 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number


@attrs.frozen(order=True)
class TopicPartition:
    """A topic by name, and one partition of it."""

    topic: str
    partition: int


class PartitionState(Protocol):
    """The state of one partition, built from its records in the order of the log."""

    @property
    def partition(self) -> int:
        """The index of the partition."""

    def apply(self, record: Record, header: BatchHeader) -> None:
        """Apply a record; `apply_marker` commits transactional ones. Raises DecodeError, ValueError: it is skipped."""

    def apply_marker(self, marker: EndMarker) -> None:
        """Commit or drop the records of a producer's transaction."""


S = TypeVar("S", bound=PartitionState)


@attrs.define(eq=False, kw_only=True, repr=False)
class LedPartitions(Generic[S]):
    """The partitions of `topic` that this broker leads or loads.

    `known_count` returns the number of partitions of the topic, 0 if there is no topic. `new_state` makes the empty
    state of a partition from its index and leader epoch. `on_loaded` is called with a complete state, `on_resigned`
    with a state that is dropped, loaded or not.
    """

    topic: str
    known_count: Callable[[], int]
    new_state: Callable[[int, int], S]
    on_loaded: Callable[[S], None]
    on_resigned: Callable[[S], None]
    _count: int = attrs.field(default=0, init=False)  # partitions of the topic when the first one was led here
    _led: dict[int, S] = attrs.field(factory=dict, init=False)
    _loading: dict[int, S] = attrs.field(factory=dict, init=False)

    def __iter__(self) -> Iterator[S]:
        return iter(self._led.values())

    @property
    def partition_count(self) -> int:
        """Return the number of partitions of the topic, on all brokers; 0 while there is no topic."""
        return self._count or self.known_count()

    @property
    def has_topic(self) -> bool:
        return self.partition_count > 0

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def is_led(self, index: int) -> bool:
        """Tell whether a partition is led here and loaded."""
        return index in self._led

    def is_current(self, state: S) -> bool:
        """Tell whether this is the loaded state of its partition, not that of an earlier leadership."""
        return self._led.get(state.partition) is state

    def partition_of(self, key: str) -> int:
        """Return the partition whose leader coordinates a key. The topic must exist."""
        return coordinator_partition(key, self.partition_count)

    def error_code(self, key: str) -> int:
        """Return NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS if this broker can't answer for a key, or NONE."""
        if not self.has_topic:
            return NOT_COORDINATOR
        index = self.partition_of(key)
        if index in self._led:
            return NONE
        return COORDINATOR_LOAD_IN_PROGRESS if index in self._loading else NOT_COORDINATOR

    def find(self, key: str) -> S:
        """Return the state that a key belongs to. Raises KafkaError as `error_code`."""
        error_code = self.error_code(key)
        if error_code == NONE:
            return self._led[self.partition_of(key)]
        index = self.partition_of(key) if self.has_topic else 0
        reason = "is not led by this broker" if error_code == NOT_COORDINATOR else "is being loaded: try again"
        raise KafkaError(error_code, f"{self.topic}-{index} {reason}")

    def begin_loading(self, index: int, leader_epoch: int) -> S:
        """Return the empty state of a partition that this broker leads from now on; an earlier state is dropped."""
        self._count = self._count or max(self.known_count(), index + 1)
        assert 0 <= index < self._count, (self.topic, index, self._count)
        self.resign(index)
        state = self._loading[index] = self.new_state(index, leader_epoch)
        return state

    def finish_loading(self, state: S) -> bool:
        """Coordinate a state that is complete; False if its partition was resigned or is loaded anew."""
        if self._loading.get(state.partition) is not state:
            return False
        del self._loading[state.partition]
        self._led[state.partition] = state
        self.on_loaded(state)
        return True

    def resign(self, index: int) -> None:
        """Drop the state of a partition: another broker may lead it from now on."""
        state = self._loading.pop(index, None) or self._led.pop(index, None)
        if state is not None:
            self.on_resigned(state)
