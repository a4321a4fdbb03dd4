"""The transactions of one partition: each rule by itself, and all of them against a model that reads the whole log."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.errors import InvalidRecord, KafkaError
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction, Producer
from kafscale.log.partition.transactions import NEVER, Transactions
from kafscale.wire.batch_header import TRANSACTIONAL, BatchHeader
from kafscale.wire.control_records import EndMarker
from kafscale.wire.error_codes import INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, TRANSACTION_COORDINATOR_FENCED

RECORDS_COUNT = 2  # of each data batch


def data(producer_id: int = 1, epoch: int = 0, *, attributes: int = TRANSACTIONAL) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=0,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=RECORDS_COUNT - 1,
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        record_count=RECORDS_COUNT,
    )


def marker(producer_id: int = 1, epoch: int = 0, *, coordinator_epoch: int = 0, is_commit: bool = True) -> EndMarker:
    return EndMarker(
        producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=coordinator_epoch, is_commit=is_commit
    )


def with_one_open(first_offset: int = 10, **header) -> Transactions:
    transactions = Transactions()
    transactions.take_data(data(**header), first_offset, -1)
    return transactions


# ---- what may come next ---------------------------------------------------------------------------------------------


def refused(code: int):
    return pytest.raises(KafkaError, check=lambda exc: exc.code == code)


def test_data_opens_a_transaction_only_if_the_producer_is_enrolled():
    transactions = Transactions()
    with refused(INVALID_TXN_STATE):
        transactions.check_data(data(), is_enrolled=False)
    transactions.check_data(data(), is_enrolled=True)
    transactions.take_data(data(), 5, -1)
    transactions.check_data(data(), is_enrolled=False)
    assert transactions.first_unstable_offset == 5


def test_data_of_a_newer_producer_epoch_needs_a_new_enrolment():
    transactions = with_one_open()
    with refused(INVALID_TXN_STATE):
        transactions.check_data(data(epoch=1), is_enrolled=False)
    transactions.check_data(data(epoch=1), is_enrolled=True)
    transactions.take_data(data(epoch=1), 12, -1)
    assert list(transactions.open.values()) == [OpenTransaction(1, 1, 10)]


def test_data_of_an_older_epoch_is_refused_also_when_its_producer_was_forgotten():
    with refused(INVALID_PRODUCER_EPOCH):
        with_one_open(epoch=2).check_data(data(epoch=1), is_enrolled=True)


def test_data_beside_an_open_transaction_of_its_producer_is_refused():
    transactions = with_one_open()
    with refused(INVALID_TXN_STATE):
        transactions.check_data(data(attributes=0), is_enrolled=False)
    transactions.check_data(data(producer_id=2, attributes=0), is_enrolled=False)


def test_a_transactional_batch_needs_a_producer():
    with pytest.raises(InvalidRecord):
        Transactions().check_data(data(producer_id=-1), is_enrolled=True)


def test_a_marker_of_an_epoch_that_is_over_is_refused():
    with refused(INVALID_PRODUCER_EPOCH):
        with_one_open(epoch=2).check_marker(marker(epoch=1), None)
    with refused(INVALID_PRODUCER_EPOCH):
        Transactions().check_marker(marker(epoch=1), Producer(1, 2, [], 0))


def test_a_coordinator_that_another_one_has_followed_is_fenced():
    for transactions in (Transactions(), with_one_open()):
        with refused(TRANSACTION_COORDINATOR_FENCED):
            transactions.check_marker(marker(epoch=5, coordinator_epoch=3), Producer(1, 0, [], 0, coordinator_epoch=4))
    restored = Transactions()
    restored.restore([OpenTransaction(1, 0, 10, coordinator_epoch=4)])
    with refused(TRANSACTION_COORDINATOR_FENCED):
        restored.check_marker(marker(coordinator_epoch=3), None)


def test_a_repeated_marker_is_taken_only_with_a_newer_epoch_or_an_open_transaction():
    known = Producer(1, 3, [], 0, coordinator_epoch=4)
    transactions = Transactions()
    assert not transactions.check_marker(marker(epoch=3, coordinator_epoch=4), known)
    assert transactions.check_marker(marker(epoch=4, coordinator_epoch=4), known), "it fences a zombie"
    assert transactions.check_marker(marker(epoch=3, coordinator_epoch=5), known), "it fences a coordinator"
    assert transactions.check_marker(marker(epoch=0), None)
    transactions.take_data(data(epoch=3), 5, 4)
    assert transactions.check_marker(marker(epoch=3, coordinator_epoch=4), known), "another transaction of that epoch"


def test_a_late_marker_does_not_end_the_next_transaction():
    """With KIP-890 each transaction has an epoch of its own, and a marker that of the next one (KIP-1228)."""
    late = attrs.evolve(marker(epoch=3, coordinator_epoch=4), transaction_version=2)
    with refused(INVALID_PRODUCER_EPOCH):
        with_one_open(epoch=3).check_marker(late, Producer(1, 3, [], 0, coordinator_epoch=4))
    assert with_one_open(epoch=2).check_marker(late, None), "the one that it ends"
    assert not Transactions().check_marker(late, Producer(1, 3, [], 0, coordinator_epoch=4)), "it has come before"


# ---- what has come --------------------------------------------------------------------------------------------------


def test_a_transaction_is_unstable_until_its_marker_is_durable():
    transactions = with_one_open(10)
    transactions.take_marker(marker(), 12)
    transactions.became_durable(12)
    assert transactions.first_unstable_offset == 10
    transactions.became_durable(13)
    assert transactions.first_unstable_offset == NEVER


def test_an_aborted_transaction_tells_up_to_where_all_was_decided():
    transactions = with_one_open(10)
    transactions.take_data(data(producer_id=2), 12, -1)
    transactions.take_marker(marker(producer_id=2, is_commit=False), 14)
    transactions.take_marker(marker(producer_id=1, is_commit=False), 15)
    told = [AbortedTransaction(2, 12, 14, 10), AbortedTransaction(1, 10, 15, 16)]
    assert transactions.aborted_by_markers(0, 100) == told
    assert transactions.aborted_by_markers(15, 16) == told[1:]
    assert transactions.aborted_by_markers(0, 15) == told[:1]


def test_a_marker_without_data_in_this_partition_ends_nothing():
    transactions = Transactions()
    assert transactions.take_marker(marker(is_commit=False), 3) is None
    assert transactions.aborted_by_markers(0, 100) == []


# ---- a model --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Entry:
    """A batch of the model's log; `outcome` is that of a marker, None for data."""

    producer_id: int
    offset: int
    outcome: bool | None

    @property
    def next_offset(self) -> int:
        return self.offset + (RECORDS_COUNT if self.outcome is None else 1)


@attrs.define
class Model:
    """Knows the log only, and goes through all of it for each question."""

    log: list[Entry] = attrs.field(factory=list)
    high_watermark: int = 0
    flushed_offset: int = 0

    @property
    def end(self) -> int:
        return self.log[-1].next_offset if self.log else 0

    def ended(self) -> list[tuple[int, int, float, bool]]:
        """Producer, first offset, marker offset (infinite for an open one), and whether it was aborted."""
        found, first = [], {}
        for entry in self.log:
            if entry.outcome is None:
                first.setdefault(entry.producer_id, entry.offset)
            elif entry.producer_id in first:
                found.append((entry.producer_id, first.pop(entry.producer_id), entry.offset, not entry.outcome))
        return found + [(producer_id, offset, math.inf, False) for producer_id, offset in first.items()]

    def stable_offset(self) -> int:
        unstable = [first for _, first, at, _ in self.ended() if at >= self.high_watermark]
        return min([self.high_watermark, *unstable])

    def open_at(self, end_offset: int) -> list[tuple[int, int]]:
        return sorted((first, who) for who, first, at, _ in self.ended() if first < end_offset <= at)

    def aborted(self) -> list[tuple[int, int, float]]:
        return [(who, first, at) for who, first, at, aborted in self.ended() if aborted]


steps = st.one_of(
    st.tuples(st.just("data"), st.integers(1, 4)),
    st.tuples(st.just("commit"), st.integers(1, 4)),
    st.tuples(st.just("abort"), st.integers(1, 4)),
    st.tuples(st.just("durable"), st.integers(1, 6)),
    st.tuples(st.just("flush"), st.integers(1, 6)),
)


def applied(transactions: Transactions, entry: Entry) -> None:
    if entry.outcome is None:
        transactions.take_data(data(entry.producer_id), entry.offset, -1)
    else:
        transactions.take_marker(marker(entry.producer_id, is_commit=entry.outcome), entry.offset)


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=40))
def test_transactions_match_a_model_that_reads_the_whole_log(done):
    transactions, model, stable_before = Transactions(), Model(), 0
    for what, number in done:
        boundaries = [0, *(entry.next_offset for entry in model.log)]
        if what == "durable":
            reached = [each for each in boundaries if each > model.high_watermark][:number]
            if reached:
                model.high_watermark = reached[-1]
                transactions.became_durable(model.high_watermark)
        elif what == "flush":
            reached = [each for each in boundaries if model.flushed_offset < each <= model.high_watermark][:number]
            if reached:
                model.flushed_offset = reached[-1]
                transactions.flushed(model.flushed_offset)
        else:
            entry = Entry(number, model.end, {"data": None, "commit": True, "abort": False}[what])
            applied(transactions, entry)
            model.log.append(entry)
        stable = min(model.high_watermark, transactions.first_unstable_offset)
        assert stable == model.stable_offset()
        assert stable >= stable_before, "the last stable offset went back"
        stable_before = stable
        assert_alike(transactions, model)


def assert_alike(transactions: Transactions, model: Model) -> None:
    """Whatever a footer, a reader or a restart asks is answered as the model does."""
    tail = [0, *(entry.next_offset for entry in model.log)]
    tail = [offset for offset in tail if offset >= model.flushed_offset]
    aborted = [each for each in model.aborted() if each[2] >= model.flushed_offset]
    for offset in tail:
        told = [(each.first_offset, each.producer_id) for each in transactions.open_at(offset)]
        assert told == model.open_at(offset)
        for end in tail:
            found = transactions.aborted_between(offset, end)
            assert [(each.producer_id, each.first_offset, each.marker_offset) for each in found] == [
                each for each in aborted if each[2] >= offset and each[1] < end
            ]
            markers = [each.marker_offset for each in transactions.aborted_by_markers(offset, end)]
            assert markers == [each[2] for each in aborted if offset <= each[2] < end]
    assert len(transactions.aborted_by_markers(0, model.end)) == len(aborted), "what is in a segment is remembered"
    for each in transactions.aborted_by_markers(model.flushed_offset, model.end):
        assert each.stable_offset == min(
            [each.marker_offset + 1, *(first for first, _ in model.open_at(each.marker_offset + 1))]
        )
    restarted = Transactions()
    restarted.restore(transactions.open_at(model.flushed_offset))
    assert restarted.first_unstable_offset == min([NEVER, *(first for first, _ in model.open_at(model.flushed_offset))])
    for entry in model.log:
        if entry.offset >= model.flushed_offset:
            applied(restarted, entry)
    restarted.became_durable(model.high_watermark)
    assert restarted.first_unstable_offset == transactions.first_unstable_offset
    for offset in tail:
        assert restarted.open_at(offset) == transactions.open_at(offset)
        assert restarted.aborted_by_markers(offset, model.end) == transactions.aborted_by_markers(offset, model.end)
