"""Idempotent producers: which batch may come next, which is a duplicate, what is forgotten and restored."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import KafkaError
from kafscale.formats.transactions import ProducedBatch, Producer
from kafscale.log.partition.producers import GAP_SECONDS, SEQUENCE_COUNT, ProducerStates
from kafscale.wire.batch_header import parse_header
from kafscale.wire.control_records import EndMarker
from kafscale.wire.error_codes import INVALID_PRODUCER_EPOCH, NOT_LEADER_OR_FOLLOWER, OUT_OF_ORDER_SEQUENCE_NUMBER
from kafscale.wire.records import ProducerStamp, Record, build_batch

EVERYTHING_IS_DURABLE = 1 << 62


def header(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0):
    stamp = ProducerStamp(producer_id, epoch, sequence)
    return parse_header(memoryview(build_batch([Record(value=b"v")] * count, producer=stamp)))


class Partition:
    """What a partition does with producer states."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.next_offset = 0
        self.durable_before = EVERYTHING_IS_DURABLE

    def append(self, sequence: int, count: int = 1, *, now_ms: int = 0, **stamp: int) -> int:
        """The offset of the batch, or of the one that it is a duplicate of."""
        batch = header(sequence, count, **stamp)
        earlier = self.states.check(batch)
        if earlier is not None:
            return earlier.base_offset
        offset = self.next_offset
        self.states.record(batch, offset, now_ms, durable_before=self.durable_before)
        self.next_offset += count
        return offset

    def open(self) -> None:
        self.states.open(trio.current_time() + 1.0, self.next_offset)

    def refuses(self, sequence: int, count: int = 1, **stamp: int) -> int:
        with pytest.raises(KafkaError) as caught:
            self.append(sequence, count, **stamp)
        return caught.value.code


def test_each_of_the_last_five_batches_is_recognised_with_its_offset():
    partition = Partition()
    offsets = [partition.append(10 * index, 10) for index in range(6)]
    assert [partition.append(10 * index, 10) for index in range(1, 6)] == offsets[1:]
    assert partition.next_offset == 60


async def test_a_later_batch_of_an_unseen_producer_is_refused_just_after_the_opening(
    autojump_clock,
):
    partition = Partition()
    partition.append(0, 2, producer_id=8)
    partition.open()
    assert partition.refuses(3, 2) == NOT_LEADER_OR_FOLLOWER
    assert partition.append(2, 1, producer_id=8) == 2  # one that is known
    assert [partition.append(0, 3), partition.append(3, 2)] == [3, 6]
    assert partition.refuses(5, producer_id=9) == NOT_LEADER_OR_FOLLOWER
    await trio.sleep(1.0)
    assert partition.append(5, producer_id=9) == 8  # its earlier batches are forgotten


async def test_a_batch_refused_just_after_the_opening_does_not_become_the_first_batch(
    autojump_clock,
):
    """The first was refused as the partition was not open yet, and would never be taken after the one behind it."""
    partition = Partition()
    partition.open()
    partition.states.refuse(header(2, 6), 0)
    assert partition.append(0, 2) == 0
    assert partition.append(2, 6) == 2


async def test_a_sequence_gap_gets_a_retriable_error_while_the_partition_opens(autojump_clock):
    """Of OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka takes a new epoch, and repeats in it what other partitions have."""
    partition = Partition()
    partition.append(0, 3)
    partition.append(0, producer_id=8)
    partition.open()
    assert partition.refuses(4) == NOT_LEADER_OR_FOLLOWER  # 3 was refused a moment ago
    assert partition.refuses(2, epoch=1) == NOT_LEADER_OR_FOLLOWER
    assert partition.refuses(1) == OUT_OF_ORDER_SEQUENCE_NUMBER  # not ahead: it never fits
    assert [partition.append(0, 3), partition.append(3), partition.append(4)] == [0, 4, 5]
    assert partition.refuses(6) == OUT_OF_ORDER_SEQUENCE_NUMBER  # its batches come in order again
    assert partition.refuses(2, producer_id=8) == NOT_LEADER_OR_FOLLOWER
    await trio.sleep(1.5)  # the answer to the first one may wait for that to another request
    assert partition.refuses(2, producer_id=8) == NOT_LEADER_OR_FOLLOWER
    await trio.sleep(GAP_SECONDS)
    assert partition.refuses(2, producer_id=8) == OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_sequence_gap_over_the_wrap_around_gets_a_retriable_error_too(autojump_clock):
    partition = Partition()
    partition.append(SEQUENCE_COUNT - 1)
    partition.open()
    assert partition.refuses(1) == NOT_LEADER_OR_FOLLOWER
    assert [partition.append(0), partition.append(1)] == [1, 2]


def test_batches_behind_a_refused_first_batch_wait_for_it():
    partition = Partition()
    partition.states.refuse(header(0, 3), 0)
    partition.states.refuse(header(3, 2), 0)
    assert partition.refuses(3, 2) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [partition.append(0, 3), partition.append(3, 2)] == [0, 3]
    assert partition.states.snapshot(partition.next_offset)[0].due_sequence is None


def test_a_forgotten_producer_continues_with_its_refused_batch():
    partition = Partition()
    partition.states.refuse(header(40), 0)
    assert partition.refuses(41) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(40) == 0


def test_a_refused_batch_of_a_registered_producer_changes_nothing():
    partition = Partition()
    partition.append(0)
    partition.states.refuse(header(1), 0)
    assert partition.refuses(2) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(1) == 1


def test_a_batch_older_than_the_last_five_is_out_of_order():
    partition = Partition()
    for index in range(7):
        partition.append(index)
    assert partition.refuses(0) == OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(("sequence", "count"), [(11, 1), (9, 1), (0, 5), (0, 11), (5, 5), (5, 6)])
def test_a_gap_or_a_batch_that_overlaps_another_is_out_of_order(sequence, count):
    partition = Partition()
    partition.append(0, 10)
    assert partition.refuses(sequence, count) == OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unseen_producer_can_begin_at_any_sequence():
    assert Partition().append(1000) == 0


def test_an_older_epoch_is_refused_and_a_new_one_begins_at_zero():
    partition = Partition()
    partition.append(0, 3, epoch=4)
    assert partition.refuses(3, epoch=3) == INVALID_PRODUCER_EPOCH
    assert partition.refuses(3, epoch=5) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(0, epoch=5) == 3
    assert partition.append(1, epoch=5) == 4
    assert partition.refuses(3, epoch=4) == INVALID_PRODUCER_EPOCH


def test_producers_do_not_know_of_each_other():
    partition = Partition()
    assert [partition.append(0, producer_id=1), partition.append(0, producer_id=2)] == [0, 1]
    assert partition.append(0, producer_id=1) == 0


@pytest.mark.parametrize("last_before_wrap", [SEQUENCE_COUNT - 1, SEQUENCE_COUNT - 3])
def test_sequences_wrap_from_the_largest_to_zero(last_before_wrap):
    partition = Partition()
    partition.append(last_before_wrap, 5)
    following = (last_before_wrap + 5) % SEQUENCE_COUNT
    assert partition.refuses(following + 1) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(following) == 5
    assert partition.append(last_before_wrap, 5) == 0


def test_more_than_five_batches_are_remembered_until_durable():
    partition = Partition()
    partition.durable_before = 0
    for index in range(12):
        partition.append(index)
    assert [partition.append(index) for index in range(12)] == list(range(12))
    partition.durable_before = EVERYTHING_IS_DURABLE
    partition.append(12)
    assert partition.refuses(7) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(8) == 8


def test_a_footer_that_ends_before_a_new_epoch_which_is_then_lost_tells_of_the_former_one():
    """Otherwise a batch of it would be written twice, if it is sent again, or called out of order."""
    partition = Partition()
    partition.append(0)
    partition.append(1)
    partition.durable_before = partition.next_offset
    end_offset = partition.next_offset
    partition.append(0, epoch=1)
    partition.append(0, epoch=2)
    partition.states.record_marker(
        EndMarker(producer_id=7, producer_epoch=4, coordinator_epoch=1, is_commit=False),
        partition.next_offset,
        0,
        goes_on=False,
        durable_before=end_offset,
    )
    for found in (partition.states.snapshot(end_offset), partition.states.for_footer(0, end_offset).producers):
        after = Partition()
        after.states.restore(found)
        after.next_offset = end_offset
        assert after.append(1) == 1
        assert after.append(2) == end_offset
    later = partition.states.for_footer(end_offset, end_offset + 2).producers
    assert [(each.epoch, len(each.batches)) for each in later] == [(2, 1)]
    used_bytes = partition.states.budget.used_bytes
    partition.states.for_footer(end_offset, partition.next_offset + 1)
    assert partition.states.budget.used_bytes < used_bytes
    partition.states.clear()
    assert partition.states.budget.used_bytes == 0


def test_producers_that_were_not_heard_of_are_forgotten():
    partition = Partition()
    partition.append(0, producer_id=1, now_ms=100)
    partition.append(0, producer_id=2, now_ms=200)
    partition.states.expire(200)
    assert set(partition.states.producers) == {2}
    assert partition.append(50, producer_id=1) == 2
    assert partition.refuses(50, producer_id=2) == OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_snapshot_is_the_state_before_an_offset_and_a_copy():
    partition = Partition()
    partition.durable_before = 0
    for index in range(8):
        partition.append(index, now_ms=5)
    partition.append(0, producer_id=9)
    snapshot = partition.states.snapshot(7)
    kept = [ProducedBatch(index, index, index, index) for index in range(2, 7)]
    assert snapshot == [Producer(7, 0, kept, 5)]
    partition.append(8)
    assert snapshot == [Producer(7, 0, kept, 5)]


def test_a_restored_producer_continues_and_leaves_the_snapshot_unchanged():
    partition = Partition()
    for index in range(4):
        partition.append(index)
    snapshot = partition.states.snapshot(4)
    after = Partition()
    after.states.restore(snapshot)
    after.next_offset = 4
    assert after.append(2) == 2
    assert after.refuses(5) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert after.append(4) == 4
    assert snapshot == partition.states.snapshot(4)


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 7)), max_size=40))
def test_a_producer_that_retries_any_of_its_last_five_never_writes_twice(steps):
    """`steps`: size of the next batch, whether all before it has become durable, and how far back a retry reaches."""
    partition = Partition()
    partition.durable_before = 0
    sent: list[tuple[int, int, int]] = []
    sequence = SEQUENCE_COUNT - 10
    for count, durable, back in steps:
        if durable:
            partition.durable_before = partition.next_offset
        sent.append((sequence, count, partition.append(sequence, count)))
        sequence = (sequence + count) % SEQUENCE_COUNT
        retried_sequence, retried_count, offset = sent[-1 - min(back, 4, len(sent) - 1)]
        assert partition.append(retried_sequence, retried_count) == offset
    assert [offset for _, _, offset in sent] == [sum(count for _, count, _ in sent[:i]) for i in range(len(sent))]
