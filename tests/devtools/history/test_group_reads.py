"""Tests of the checker of group reads: unread records are found."""

from __future__ import annotations

from tests.devtools.history.group_reads import GroupReads
from tests.devtools.history.history import History
from tests.devtools.world.workload import Topic


def reads_of(end_offset: int) -> GroupReads:
    history, topic = History(), Topic("orders", bytes(16), 1)
    history.sent("p", "orders-0", "value")
    history.acknowledged("orders-0", "value", end_offset - 1)
    return GroupReads(topic=topic, history=history)


def test_overlapping_reads_of_successive_members_cover_all_records() -> None:
    reads = reads_of(30)
    reads.passed(0, 20, 30)
    reads.passed(0, 0, 15)
    reads.passed(0, 10, 20)  # from where the group had committed last
    assert reads.missing() == {}


def test_an_unread_record_between_two_reads_is_missing() -> None:
    reads = reads_of(30)
    reads.passed(0, 0, 10)
    reads.passed(0, 11, 30)
    assert reads.missing() == {0: 10}


def test_an_unread_record_after_the_last_read_is_missing() -> None:
    reads = reads_of(30)
    reads.passed(0, 0, 29)
    assert reads.missing() == {0: 29}


def test_an_empty_partition_has_no_missing_records() -> None:
    assert GroupReads(topic=Topic("orders", bytes(16), 1), history=History()).missing() == {}


def test_a_member_that_has_given_a_partition_up_begins_where_the_group_is() -> None:
    reads = reads_of(30).by("member")
    reads.begin(0, -1)
    assert reads.positions == {0: 0}
    reads.keep(())
    assert reads.positions == {}
    reads.begin(0, 10)
    assert reads.positions == {0: 10}
