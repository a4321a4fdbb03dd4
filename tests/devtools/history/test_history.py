"""The checker is itself checked: a sound history has no anomaly, and each one that is planted is found."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.devtools.history.history import Anomaly, Content, History, Kind, Read

ORDERS = "orders-0"


def reads(first_offset: int, *values: str) -> list[Read]:
    return [Read(first_offset + index, value) for index, value in enumerate(values)]


def sound_history() -> History:
    """Two producers, a retry over a restart, two consumers, a group."""
    history = History()
    for producer, value in (("p", "p0"), ("q", "q0"), ("p", "p1"), ("p", "p2")):
        history.sent(producer, ORDERS, value)
    began = history.now()
    history.acknowledged(ORDERS, "p0", 0)
    history.polled("c", ORDERS, reads(0, "p0"))
    history.saw_offsets(ORDERS, began=began, log_start_offset=0, high_watermark=1)
    history.acknowledged(ORDERS, "q0", 1)
    history.acknowledged(ORDERS, "p1")
    history.polled("c", ORDERS, reads(1, "q0", "p1", "p2"))  # p2 was written, and its reply lost
    history.saw_offsets(ORDERS, began=history.now(), log_start_offset=0, high_watermark=4)
    history.sought("c", ORDERS)
    history.polled("c", ORDERS, reads(2, "p1"))
    history.polled("d", ORDERS, reads(0, "p0", "q0", "p1", "p2"))
    for offset in (1, 3):
        history.committing("g", ORDERS, offset)
    history.committed("g", ORDERS, 1)
    history.fetched_commit("g", ORDERS, 3)  # this one's reply was lost
    return history


def test_a_sound_history_has_no_anomaly() -> None:
    assert sound_history().anomalies() == []
    assert sound_history().acknowledged_count == 3


def lost_write(history: History) -> None:
    history.sent("p", ORDERS, "p3")
    history.sent("q", ORDERS, "q1")
    history.acknowledged(ORDERS, "p3")
    history.sent("p", ORDERS, "p4")
    history.polled("d", ORDERS, reads(4, "q1", "p4"))


def lost_write_whose_offset_another_value_has(history: History) -> None:
    history.sent("p", ORDERS, "p3")
    history.sent("q", ORDERS, "q1")
    history.acknowledged(ORDERS, "p3", 4)
    history.polled("d", ORDERS, reads(4, "q1"))


def unseen(history: History) -> None:
    history.sent("p", ORDERS, "p3")
    history.acknowledged(ORDERS, "p3", 4)


def duplicate(history: History) -> None:
    history.polled("d", ORDERS, reads(4, "p2"))


def reordering(history: History) -> None:
    for value in ("p3", "p4"):
        history.sent("p", ORDERS, value)
    history.polled("d", ORDERS, reads(4, "p4", "p3"))


def two_values(history: History) -> None:
    for producer, value in (("p", "p3"), ("q", "q1")):
        history.sent(producer, ORDERS, value)
    history.polled("c2", ORDERS, reads(4, "p3"))
    history.polled("d", ORDERS, reads(4, "q1"))


def acknowledged_at_another_offset(history: History) -> None:
    history.acknowledged(ORDERS, "p2", 2)


def unknown_value(history: History) -> None:
    history.polled("d", ORDERS, reads(4, "x"))


def gap(history: History) -> None:
    for value in ("p3", "p4"):
        history.sent("p", ORDERS, value)
    history.polled("d", ORDERS, reads(5, "p4"))


def non_monotonic_poll(history: History) -> None:
    history.polled("d", ORDERS, reads(3, "p2"))


def high_watermark_moved_back(history: History) -> None:
    history.saw_offsets(ORDERS, began=history.now(), log_start_offset=0, high_watermark=3)


def high_watermark_behind_what_was_acknowledged(history: History) -> None:
    history.sent("p", ORDERS, "p3")
    history.acknowledged(ORDERS, "p3", 4)
    history.polled("d", ORDERS, reads(4, "p3"))
    history.saw_offsets(ORDERS, began=history.now(), log_start_offset=0, high_watermark=4)


def log_start_moved_back(history: History) -> None:
    history.deleting(ORDERS, 2)
    for log_start_offset in (2, 1):
        history.saw_offsets(ORDERS, began=history.now(), log_start_offset=log_start_offset, high_watermark=4)


def log_start_before_what_was_acknowledged(history: History) -> None:
    history.deleting(ORDERS, 2)
    history.deleted(ORDERS, 2)
    history.saw_offsets(ORDERS, began=history.now(), log_start_offset=0, high_watermark=4)


def deleted_unasked(history: History) -> None:
    history.deleting(ORDERS, 2)
    history.saw_offsets(ORDERS, began=history.now(), log_start_offset=3, high_watermark=4)


def deleted_and_read(history: History) -> None:
    history.deleting(ORDERS, 2)
    history.deleted(ORDERS, 2)
    history.polled("e", ORDERS, reads(1, "q0", "p1"), began=history.now())


def lost_behind_the_log_start(history: History) -> None:
    history.sent("p", ORDERS, "p3")
    history.acknowledged(ORDERS, "p3", 4)
    history.deleting(ORDERS, 4)
    history.saw_offsets(ORDERS, began=history.now(), log_start_offset=4, high_watermark=5)


def lost_commit(history: History) -> None:
    history.committing("g", ORDERS, 5)
    history.committed("g", ORDERS, 5)
    history.fetched_commit("g", ORDERS, 3)


def commit_lost_after_it_was_seen(history: History) -> None:
    history.fetched_commit("g", ORDERS, 1)  # 3 had been fetched before


def commit_lost_that_came_late(history: History) -> None:
    for offset in (4, 5):
        history.committing("g", ORDERS, offset)
    history.committed("g", ORDERS, 5)
    history.fetched_commit("g", ORDERS, 4)  # whose client had connected anew
    history.committed("g", ORDERS, 6)
    history.fetched_commit("g", ORDERS, 4)  # it can't come twice


def commit_that_nobody_made(history: History) -> None:
    history.fetched_commit("g", ORDERS, 2)


def content(timestamp_ms: int, *, is_tombstone: bool = False) -> Content:
    return Content(timestamp_ms, digest=timestamp_ms, is_tombstone=is_tombstone)


def changed(history: History) -> None:
    history.sent("p", ORDERS, "p3", content=content(5))
    history.acknowledged(ORDERS, "p3", 4)
    history.polled("d", ORDERS, [Read(4, "p3", content(6))])


def with_times(history: History) -> None:
    """Give offsets 4, 5 and 6 the times 50, 40 and 60 ms."""
    for offset, timestamp_ms in ((4, 50), (5, 40), (6, 60)):
        history.sent("t", ORDERS, f"t{offset}", content=content(timestamp_ms))
        history.acknowledged(ORDERS, f"t{offset}", offset)
        history.polled("d", ORDERS, [Read(offset, f"t{offset}", content(timestamp_ms))])


def found_behind_the_first(history: History) -> None:
    with_times(history)
    history.found_by_time(ORDERS, 45, offset=6, timestamp_ms=60, began=history.now())


def found_nothing_although_there_is(history: History) -> None:
    with_times(history)
    history.found_by_time(ORDERS, 60, offset=-1, timestamp_ms=-1, began=history.now())


def found_what_is_too_early(history: History) -> None:
    with_times(history)
    history.found_by_time(ORDERS, 45, offset=0, timestamp_ms=44, began=history.now())


def found_with_another_timestamp(history: History) -> None:
    with_times(history)
    history.found_by_time(ORDERS, 45, offset=4, timestamp_ms=51, began=history.now())


def found_a_latest_before_which_the_same_comes(history: History) -> None:
    with_times(history)
    history.sent("t", ORDERS, "t7", content=content(60))
    history.acknowledged(ORDERS, "t7", 7)
    history.polled("d", ORDERS, [Read(7, "t7", content(60))])
    history.found_latest(ORDERS, offset=7, timestamp_ms=60, began=history.now())


def found_a_latest_behind_which_a_later_one_comes(history: History) -> None:
    with_times(history)
    history.found_latest(ORDERS, offset=4, timestamp_ms=50, began=history.now())


def found_no_latest_although_there_is_a_record(history: History) -> None:
    with_times(history)
    history.found_latest(ORDERS, offset=-1, timestamp_ms=-1, began=history.now())


def found_what_was_deleted(history: History) -> None:
    with_times(history)
    history.deleting(ORDERS, 6)
    history.deleted(ORDERS, 6)
    history.found_by_time(ORDERS, 45, offset=4, timestamp_ms=50, began=history.now())


def with_epochs(history: History) -> None:
    """Give offsets 4 and 5 the epochs 1 and 2."""
    for offset, epoch in ((4, 1), (5, 2)):
        history.sent("e", ORDERS, f"e{offset}")
        history.polled("d", ORDERS, [Read(offset, f"e{offset}", leader_epoch=epoch)])


def epoch_that_ends_too_late(history: History) -> None:
    with_epochs(history)
    history.saw_epoch_end(ORDERS, 1, end_offset=6, began=history.now())


def epoch_that_ends_too_early(history: History) -> None:
    with_epochs(history)
    history.saw_epoch_end(ORDERS, 1, end_offset=4, began=history.now())


def epoch_that_goes_on_behind_its_end(history: History) -> None:
    history.sent("e", ORDERS, "e4")
    history.saw_epoch_end(ORDERS, 1, end_offset=4, began=history.now(), is_final=True)
    history.polled("d", ORDERS, [Read(4, "e4", leader_epoch=1)])


def resurrected(history: History) -> None:
    history.tombstones_may_go = True
    for offset, value in ((4, "v"), (5, "tombstone"), (6, "other")):
        key = "k" if offset < 6 else "l"
        history.sent("k", ORDERS, value, key=key, content=content(offset, is_tombstone=offset == 5))
        history.acknowledged(ORDERS, value, offset)
    history.polled("d", ORDERS, reads(4, "v"))
    history.polled("d", ORDERS, reads(6, "other"))
    history.saw_offsets(ORDERS, began=history.now(), log_start_offset=0, high_watermark=7)
    history.has_read_all("d", ORDERS)
    history.polled("e", ORDERS, reads(5, "tombstone"))


PLANTS: list[tuple[Callable[[History], None], set[Kind]]] = [
    (lost_write, {Kind.LOST_WRITE}),
    (lost_write_whose_offset_another_value_has, {Kind.LOST_WRITE, Kind.TWO_VALUES}),
    (unseen, {Kind.UNSEEN}),
    (duplicate, {Kind.DUPLICATE}),
    (reordering, {Kind.REORDERING}),
    (two_values, {Kind.TWO_VALUES}),
    (acknowledged_at_another_offset, {Kind.TWO_VALUES, Kind.DUPLICATE}),
    (unknown_value, {Kind.UNKNOWN_VALUE}),
    (gap, {Kind.GAP}),
    (non_monotonic_poll, {Kind.NON_MONOTONIC_POLL}),
    (high_watermark_moved_back, {Kind.MOVED_BACK}),
    (high_watermark_behind_what_was_acknowledged, {Kind.MOVED_BACK}),
    (log_start_moved_back, {Kind.MOVED_BACK}),
    (log_start_before_what_was_acknowledged, {Kind.MOVED_BACK}),
    (deleted_unasked, {Kind.DELETED_UNASKED}),
    (deleted_and_read, {Kind.DELETED_AND_READ}),
    (lost_behind_the_log_start, {Kind.UNSEEN}),
    (lost_commit, {Kind.LOST_COMMIT}),
    (commit_lost_after_it_was_seen, {Kind.LOST_COMMIT}),
    (commit_lost_that_came_late, {Kind.LOST_COMMIT}),
    (commit_that_nobody_made, {Kind.LOST_COMMIT}),
    (changed, {Kind.CHANGED}),
    (found_behind_the_first, {Kind.WRONG_TIME}),
    (found_nothing_although_there_is, {Kind.WRONG_TIME}),
    (found_what_is_too_early, {Kind.WRONG_TIME}),
    (found_with_another_timestamp, {Kind.WRONG_TIME}),
    (found_a_latest_before_which_the_same_comes, {Kind.WRONG_TIME}),
    (found_a_latest_behind_which_a_later_one_comes, {Kind.WRONG_TIME}),
    (found_no_latest_although_there_is_a_record, {Kind.WRONG_TIME}),
    (found_what_was_deleted, {Kind.WRONG_TIME}),
    (epoch_that_ends_too_late, {Kind.WRONG_EPOCH}),
    (epoch_that_ends_too_early, {Kind.WRONG_EPOCH}),
    (epoch_that_goes_on_behind_its_end, {Kind.WRONG_EPOCH}),
    (resurrected, {Kind.RESURRECTED}),
]


@pytest.mark.parametrize(("plant", "kinds"), PLANTS)
def test_a_planted_anomaly_is_found(plant: Callable[[History], None], kinds: set[Kind]) -> None:
    history = sound_history()
    plant(history)
    assert {anomaly.kind for anomaly in history.anomalies()} == kinds


def test_each_kind_of_anomaly_is_planted() -> None:
    assert set().union(*(kinds for _, kinds in PLANTS)) == set(Kind)


def compacted_history() -> History:
    """Offset 0 has a value that a later one of its key follows, 1 and 3 do not, 2 is unknown."""
    history = History()
    for value, key in (("p0", "a"), ("p1", "b"), ("p2", "a"), ("p3", "a")):
        history.sent("p", ORDERS, value, key=key)
    for value, offset in (("p0", 0), ("p1", 1), ("p3", 3)):
        history.acknowledged(ORDERS, value, offset)
    return history


def test_records_removed_by_compaction_give_no_anomaly() -> None:
    history = compacted_history()
    history.polled("c", ORDERS, reads(1, "p1"))
    history.polled("c", ORDERS, reads(3, "p3"))
    assert history.anomalies() == []


def test_the_latest_value_of_a_key_must_stay() -> None:
    history = compacted_history()
    history.polled("c", ORDERS, reads(0, "p0"))
    history.polled("c", ORDERS, reads(3, "p3"))
    assert {anomaly.kind for anomaly in history.anomalies()} == {Kind.GAP, Kind.LOST_WRITE}


def test_deleted_records_that_are_not_read_give_no_anomaly() -> None:
    history = sound_history()
    history.sent("p", ORDERS, "p3")
    history.acknowledged(ORDERS, "p3", 4)
    history.sent("p", ORDERS, "p4")
    began = history.now()
    history.deleting(ORDERS, 5)
    history.deleted(ORDERS, 5)
    history.polled("c", ORDERS, reads(3, "p2"), began=began)  # asked before
    history.sought("c", ORDERS)
    history.polled("c", ORDERS, reads(5, "p4"), began=history.now())
    history.saw_offsets(ORDERS, began=history.now(), log_start_offset=5, high_watermark=6)
    assert history.anomalies() == []


def test_offsets_replies_that_arrive_out_of_order_give_no_anomaly() -> None:
    history = History()
    history.deleting(ORDERS, math.inf)
    slow, fast = history.now(), history.now()
    history.saw_offsets(ORDERS, began=fast, log_start_offset=1, high_watermark=9)
    history.saw_offsets(ORDERS, began=slow, log_start_offset=0, high_watermark=8)
    assert history.anomalies() == []


def test_correct_answers_about_timestamps_and_epochs_give_no_anomaly() -> None:
    history = sound_history()
    with_times(history)
    for wanted_ms, offset, timestamp_ms in ((40, 4, 50), (55, 6, 60), (61, -1, -1)):
        history.found_by_time(ORDERS, wanted_ms, offset=offset, timestamp_ms=timestamp_ms, began=history.now())
    history.found_latest(ORDERS, offset=6, timestamp_ms=60, began=history.now())
    history.sent("e", ORDERS, "e7")
    history.saw_epoch_end(ORDERS, 1, end_offset=7, began=history.now())
    history.polled("d", ORDERS, [Read(7, "e7", leader_epoch=1)])  # of the newest epoch, and came after the answer
    assert history.anomalies() == []


def test_an_epoch_end_before_a_record_read_only_from_the_bucket_gives_no_anomaly() -> None:
    """Seed 20185: the reply to the broker's PUT was still on its way."""
    history = sound_history()
    history.sent("e", ORDERS, "e4")
    history.polled("segments and log", ORDERS, [Read(4, "e4")])
    history.saw_epoch_end(ORDERS, 1, end_offset=4, began=history.now())
    history.polled("d", ORDERS, [Read(4, "e4", leader_epoch=1)])
    assert history.anomalies() == []


def test_an_unanswered_commit_that_takes_effect_after_a_later_one_gives_no_anomaly() -> None:
    history = sound_history()
    for offset in (4, 5):
        history.committing("g", ORDERS, offset)
    history.committed("g", ORDERS, 5)
    history.fetched_commit("g", ORDERS, 4)
    history.fetched_commit("g", ORDERS, 4)
    assert history.anomalies() == []


def test_forgiven_losses_and_forgotten_topics_give_no_anomaly() -> None:
    history = sound_history()
    history.forgive(ORDERS, 2)
    history.forgive_commits()
    history.sent("r", ORDERS, "r0")
    history.polled("c", ORDERS, reads(2, "r0"))
    history.polled("d", ORDERS, reads(2, "r0"))
    history.saw_offsets(ORDERS, began=history.now(), log_start_offset=0, high_watermark=3)
    history.fetched_commit("g", ORDERS, -1)
    assert history.anomalies() == []
    history.acknowledged(ORDERS, "r0", 3)
    assert {anomaly.kind for anomaly in history.anomalies()} == {Kind.DUPLICATE}
    history.forget(ORDERS)
    assert history.anomalies() == []


def test_records_sent_to_a_forgotten_topic_follow_earlier_records_without_anomaly() -> None:
    """A leader goes on until it hears of the deletion, and so does the producer."""
    history = sound_history()
    history.sent("p", ORDERS, "last")
    history.forget(ORDERS)
    history.sent("p", ORDERS, "late")
    history.polled("c", ORDERS, reads(8, "last", "late"))
    assert history.anomalies() == []


def test_a_changed_record_before_the_forgiven_offset_is_an_anomaly() -> None:
    history = sound_history()
    history.forgive(ORDERS, 2)
    history.sent("r", ORDERS, "r0")
    history.polled("e", ORDERS, reads(1, "r0"))
    assert Kind.TWO_VALUES in {anomaly.kind for anomaly in history.anomalies()}


def test_a_tombstone_removed_together_with_its_deleted_records_gives_no_anomaly() -> None:
    history = History()
    history.tombstones_may_go = True
    for offset, value in ((0, "v"), (1, "tombstone"), (2, "other")):
        key = "k" if offset < 2 else "l"
        history.sent("k", ORDERS, value, key=key, content=content(offset, is_tombstone=offset == 1))
        history.acknowledged(ORDERS, value, offset)
    history.polled("d", ORDERS, reads(2, "other"))
    history.has_read_all("d", ORDERS)
    assert history.anomalies() == []


def test_a_late_tombstone_deletes_nothing_for_a_reader_that_finished_before_it() -> None:
    """The late tombstone was in a superseded broker's segment, which the next start found behind the end."""
    history = History()
    history.sent("k", ORDERS, "v", key="k", content=content(0))
    history.polled("d", ORDERS, reads(0, "v"))
    history.saw_offsets(ORDERS, began=history.now(), log_start_offset=0, high_watermark=1)
    history.has_read_all("d", ORDERS)
    history.sent("k", ORDERS, "tombstone", key="k", content=content(1, is_tombstone=True))
    history.polled("e", ORDERS, reads(1, "tombstone"))
    history.saw_offsets(ORDERS, began=history.now(), log_start_offset=0, high_watermark=2)
    assert history.anomalies() == []
    history.has_read_all("d", ORDERS)
    assert [anomaly.kind for anomaly in history.anomalies()] == [Kind.RESURRECTED]


def test_an_anomaly_names_its_kind_partition_record_and_offset() -> None:
    history = sound_history()
    unseen(history)
    assert history.anomalies() == [Anomaly(Kind.UNSEEN, ORDERS, "p3, acknowledged at 4")]
    assert str(history.anomalies()[0]) == "unseen in orders-0: p3, acknowledged at 4"


def test_a_marker_counts_as_no_gap_and_a_decreasing_stable_offset_is_an_anomaly() -> None:
    history = sound_history()
    history.sent("p", ORDERS, "p3")
    history.polled("d", ORDERS, reads(5, "p3"))
    assert [anomaly.kind for anomaly in history.anomalies()] == [Kind.GAP]
    history.marked(ORDERS, [4])
    assert history.anomalies() == []
    history.saw_stable_offset(ORDERS, began=history.now(), last_stable_offset=5)
    history.saw_stable_offset(ORDERS, began=history.now(), last_stable_offset=4)
    assert [str(anomaly) for anomaly in history.anomalies()] == [
        "offset moved back in orders-0: last stable offset 4 after 5"
    ]
    history.forgive(ORDERS, 4)
    assert history.log_start_offset(ORDERS) == 0
    assert history.anomalies() == []


def test_a_record_that_was_sent_again_after_a_loss_may_appear_twice() -> None:
    """A superseded broker flushed it, late, and the next start found that behind all that was there before."""
    history = sound_history()
    history.sent("q", ORDERS, "q1")
    history.polled("e", ORDERS, reads(0, "p0", "q0", "p1", "p2", "q1", "q1"))
    assert [anomaly.kind for anomaly in history.anomalies()] == [Kind.DUPLICATE]
    history.sent_anew(ORDERS, ["q1"])
    history.sought("e", ORDERS)
    history.polled("e", ORDERS, reads(3, "p2"))
    history.polled("e", ORDERS, reads(5, "q1"))  # compaction keeps the later one
    assert history.anomalies() == []
    history.polled("e", ORDERS, reads(6, "q1"))
    assert [anomaly.kind for anomaly in history.anomalies()] == [Kind.DUPLICATE]


def test_an_aborted_record_that_was_compacted_before_any_read_leaves_no_gap() -> None:
    history = sound_history()
    history.polled("d", ORDERS, reads(6, "p3"))
    history.sent("p", ORDERS, "p3")
    assert [anomaly.kind for anomaly in history.anomalies()] == [Kind.GAP]
    history.sent("t", ORDERS, "t0", key="t0", may_go=True)
    assert history.anomalies() == []


def test_acknowledged_records_that_may_be_removed_are_not_missed() -> None:
    history = sound_history()
    history.sent("p", ORDERS, "p3", key="p3", may_go=True)
    history.sent("p", ORDERS, "p4", key="p4", may_go=True)
    history.acknowledged(ORDERS, "p3", 4)
    history.polled("d", ORDERS, reads(5, "p4"))
    assert history.anomalies() == []


def test_an_aborted_record_that_was_removed_with_unknown_offset_leaves_no_gap() -> None:
    history = sound_history()
    history.sent("p", ORDERS, "p3")
    history.polled("d", ORDERS, reads(6, "p3"))
    assert [anomaly.kind for anomaly in history.anomalies()] == [Kind.GAP]
    history.sent("q", ORDERS, "q1", key="q1", may_go=True)  # and got no answer that is believed
    assert history.anomalies() == []
