"""What is noted of placements is looked at, whenever that is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeVar, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.leading.leading import Leading
from kafscale.cluster.membership.placement.writer import PlacementWriter
from kafscale.cluster.membership.records import Placement
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.registries.topic_records import Topic
from kafscale.errors import StartupError
from kafscale.testing.metadata import MemoryMetadataStore

FIRST, SECOND = bytes(16), bytes([1] * 16)

AnyLeading = TypeVar("AnyLeading", bound=Leading)


def leading_of(cls: type[AnyLeading], state: ClusterState, *, writer: Any = None, log: Any = None) -> AnyLeading:
    """What broker 1 leads, by a class that leaves out what the test is not about."""
    return cls(
        state=state,
        writer=writer or PlacementWriter(state),
        epoch_starts=cast(Any, None),
        log=log,
        find_topic=lambda topic_id: None,
        spec=cast(Any, None),
        tell=lambda broker_id, released: None,
    )


@attrs.define(eq=False, kw_only=True)
class Noting(Leading):
    """Writes down which topics it looks at; the second is noted while the first is looked at."""

    seen: list[bytes] = attrs.field(factory=list)

    def _open_new(self, topic_id: bytes) -> None:
        pass

    async def _forget_recovered(self) -> None:
        await trio.lowlevel.checkpoint()

    def _begin_work(self, topic_id: bytes, nursery: trio.Nursery) -> None:
        self.seen.append(topic_id)
        if topic_id == FIRST:
            self.note([SECOND])


async def test_notes_made_before_or_during_a_look_are_not_missed(autojump_clock: MockClock) -> None:
    state = ClusterState(MemoryMetadataStore(), 1, 1)
    state.placements[FIRST] = [Placement(1, 1, 1, 0)]
    leading = leading_of(Noting, state)
    async with trio.open_nursery() as nursery:
        await nursery.start(leading.run)
        await trio.sleep(1.0)
        assert leading.seen == [FIRST, SECOND]
        nursery.cancel_scope.cancel()


@attrs.define(eq=False, kw_only=True)
class GivingAway(Leading):
    """Has a target for all that it leads."""

    def _is_to_leave(self, placement: Placement) -> bool:
        return True


async def test_deleting_a_topic_during_a_hand_over_commit_causes_no_error() -> None:
    state = ClusterState(MemoryMetadataStore(), 1, 1)
    state.placements[FIRST] = [Placement(1, 1, 1, 0, target=2)]

    async def delete_meanwhile(*_: object) -> bool:
        await trio.lowlevel.checkpoint()
        leading._begin_work(FIRST, cast(Any, None))  # as when it is noted that there is no such topic any more
        return False

    leading = leading_of(
        GivingAway,
        state,
        writer=SimpleNamespace(change=delete_meanwhile),
        log=SimpleNamespace(partitions={}, moving={}, by_name={}),
    )
    await leading._hand_over(cast(Any, SimpleNamespace(topic_id=FIRST, name="t")), 0)
    assert leading._handed_over == {}


@attrs.define(eq=False, kw_only=True)
class Older(Leading):
    """Acquires what a newer version has written."""

    async def _acquire(self, topic: Topic, index: int, placement: Placement) -> None:
        await trio.lowlevel.checkpoint()
        raise StartupError("a newer KafScale has written it; start that version, or a newer one")


async def test_unreadable_records_of_a_newer_version_do_not_stop_the_next_leader(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It leads other partitions, too, while brokers are upgraded one by one."""
    leading = leading_of(Older, ClusterState(MemoryMetadataStore(), 1, 1))
    topic = cast(Any, SimpleNamespace(topic_id=FIRST, name="t"))
    await leading._work(topic, 0, Placement(1, 2, 1, 0))
    assert "t-0 can't be handed over, or taken over, just now, and is tried again: a newer KafScale" in caplog.text
