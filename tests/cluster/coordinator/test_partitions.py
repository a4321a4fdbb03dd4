"""Partitions of an internal topic: which are led here, which are being loaded, and what a key is told meanwhile."""

from __future__ import annotations

import attrs
import pytest

from kafscale.cluster.coordinator.partitions import LedPartitions, coordinator_partition
from kafscale.errors import KafkaError
from kafscale.wire import error_codes as e
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.control_records import EndMarker
from kafscale.wire.records import Record

COUNT = 50


@attrs.define(eq=False)
class State:
    """The state of a partition, which has nothing in it."""

    partition: int
    leader_epoch: int

    def apply(self, record: Record, header: BatchHeader) -> None:
        raise NotImplementedError

    def apply_marker(self, marker: EndMarker) -> None:
        raise NotImplementedError


@attrs.define(eq=False)
class World:
    """A topic that is made when `count` is set."""

    count: int = COUNT
    loaded: list[State] = attrs.field(factory=list)
    resigned: list[State] = attrs.field(factory=list)
    led: LedPartitions[State] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.led = LedPartitions(
            topic="topic",
            known_count=lambda: self.count,
            new_state=State,
            on_loaded=self.loaded.append,
            on_resigned=self.resigned.append,
        )


def test_a_key_belongs_to_the_leader_of_its_partition_once_that_is_loaded() -> None:
    world = World(count=0)
    led = world.led
    assert not led.has_topic
    assert led.error_code("orders") == e.NOT_COORDINATOR
    world.count = COUNT
    index = coordinator_partition("orders", COUNT)
    led.begin_loading((index + 1) % COUNT, 3)
    assert led.has_topic
    assert led.partition_of("orders") == index
    assert led.error_code("orders") == e.NOT_COORDINATOR

    state = led.begin_loading(index, 3)
    assert led.error_code("orders") == e.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(KafkaError, match=f"topic-{index} is being loaded") as caught:
        led.find("orders")
    assert caught.value.code == e.COORDINATOR_LOAD_IN_PROGRESS
    assert not led.is_led(index)
    assert led.finish_loading(state)
    assert led.error_code("orders") == e.NONE
    assert led.find("orders") is state
    assert (state.partition, state.leader_epoch) == (index, 3)
    assert (list(led), world.loaded) == ([state], [state])

    world.count = 0  # the topic is deleted
    led.resign(index)
    assert world.resigned == [state]
    assert led.error_code("orders") == e.NOT_COORDINATOR
    assert not led.is_current(state)


def test_a_load_that_was_overtaken_comes_to_nothing() -> None:
    world = World(count=1)
    led = world.led
    first = led.begin_loading(0, 1)
    second = led.begin_loading(0, 2)
    assert not led.finish_loading(first)
    assert led.error_code("g") == e.COORDINATOR_LOAD_IN_PROGRESS
    assert led.is_loading
    assert led.finish_loading(second)
    assert not led.is_loading
    assert led.find("g").leader_epoch == 2

    given_up = led.begin_loading(0, 3)
    assert led.error_code("g") == e.COORDINATOR_LOAD_IN_PROGRESS, "the state before counts no more"
    led.resign(0)
    assert not led.finish_loading(given_up)
    assert led.error_code("g") == e.NOT_COORDINATOR
    assert (world.loaded, world.resigned) == ([second], [first, second, given_up])
