"""Copies that are too many or too few, by where the group goes on, and groups that go on too far."""

from __future__ import annotations

from random import Random

import trio
import trio.testing

from tests.devtools.fakes.transactional_producer import TOPIC, Producer, broker
from tests.devtools.history.history import Content
from tests.devtools.history.seen import CommittedRead
from tests.devtools.world.transactional.copier import OffsetsAsker, wrong_copies
from tests.devtools.world.workload import Topic

SOURCE = {0: {value: CommittedRead(offset, value, value, Content(1, 2)) for offset, value in enumerate("abc")}}


def found(*copies: str, offset: int = 2) -> int:
    return len(list(wrong_copies(SOURCE, iter(copies), {0: offset})))


def test_each_record_before_the_groups_offset_is_copied_once() -> None:
    assert found("a>copier.0-1", "b>copier.1-1") == 0
    assert found("a>copier.0-1") == 1
    assert found("a>copier.0-1", "b>copier.0-1", "b>copier.1-1") == 1
    assert found("a>copier.0-1", "b>copier.0-1", "c>copier.0-2") == 1
    assert found(offset=0) == 0


async def test_a_committed_offset_that_no_commit_named_is_reported(autojump_clock: trio.testing.MockClock) -> None:
    async with broker() as (running, client):
        producer, asked = Producer(client), {(0, 5), (1, 0)}
        topic = Topic(TOPIC, running.broker.services.topics.get(TOPIC).topic_id, 2)
        asker = OffsetsAsker(
            group="g",
            source=topic,
            asked=asked,
            connect=running.connect,
            random=Random(1),
            pause_max_seconds=1.0,
            faults=[],
        )
        await producer.init()
        for offset, committed in ((5, True), (6, False), (7, True)):
            assert asker.faults == []
            await producer.commit_offsets("g", {0: offset, 1: 0})
            await producer.end(committed=committed)
            with trio.move_on_after(10):
                await asker.run()
    assert asker.faults[0] == "g is at (0, 7), which no commit has named"
