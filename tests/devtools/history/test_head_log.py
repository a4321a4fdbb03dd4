"""The rules of the head, each broken once."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest

from kafscale.cluster.membership.records import BrokerRecord, BrokerState, Placement, encode_row, record_key
from kafscale.cluster.metadata.converter import encode
from kafscale.formats.metadata_changes import Transaction, encode_transaction
from kafscale.formats.metadata_head import NONCE_BYTES, Head, HeadEntry, encode_head
from kafscale.formats.placements import row_key
from tests.devtools.history.head_log import Grant, HeadLog

KEY = "head"
TOPIC_ID = bytes(range(16))


@attrs.define(eq=False)
class Writer:
    """Puts one head after the other."""

    log: HeadLog
    head: Head = attrs.field(factory=lambda: Head(1))

    def put(self, head: Head) -> None:
        self.head = head
        self.log.put(KEY, b"".join(encode_head(head)))

    def add(self, *placements: Placement, kept_until: int = 0, records: Mapping[str, bytes] | None = None) -> None:
        rows = {row_key(TOPIC_ID, 0): encode_row(placements)} if placements else {}
        transaction = Transaction(puts=rows | dict(records or {}))
        nonce = len(self.head.entries).to_bytes(NONCE_BYTES, "big")
        self.put(self.head.with_entries([HeadEntry(nonce, encode_transaction(transaction))], kept_until))


@pytest.fixture
def released() -> list[Grant]:
    return []


@pytest.fixture
def writer(released: list[Grant]) -> Writer:
    def has_released(grant: Grant) -> bool:
        released.append(grant)
        return grant.before.epoch != 7

    return Writer(HeadLog(key=KEY, has_released=has_released, note=lambda text: None))


def placed(leader: int, epoch: int, decided_epoch: int = 0) -> Placement:
    return Placement(leader, epoch, decided_epoch, 0)


def test_a_sound_sequence_of_heads_has_no_faults(writer: Writer, released: list[Grant]) -> None:
    writer.add(placed(1, 1), placed(2, 1))
    writer.add(placed(2, 2), placed(2, 1))
    writer.add(placed(2, 2, 2), placed(2, 1), kept_until=1)
    assert writer.log.faults == []
    assert [(grant.index, grant.after.leader) for grant in released] == [(0, 2)]
    assert [start.epoch for start in writer.log.begun((TOPIC_ID, 0))] == [2]


def test_an_entry_that_is_left_out_is_found(writer: Writer) -> None:
    writer.add(placed(1, 1))
    writer.add(placed(1, 2))
    first, second = writer.head.entries
    writer.put(attrs.evolve(writer.head, entries=(second, second, second)))
    assert first != second
    assert "forked" in writer.log.faults[0]


def test_a_head_that_moves_back_is_found(writer: Writer) -> None:
    writer.add(placed(1, 1))
    before = writer.head
    writer.add(placed(1, 2))
    writer.put(before)
    assert "moved back" in writer.log.faults[0]


def test_a_partition_that_was_not_released_is_found(writer: Writer) -> None:
    writer.add(placed(1, 7))
    writer.add(placed(2, 8))
    assert "has not released it" in writer.log.faults[0]


def test_an_epoch_that_does_not_grow_is_found(writer: Writer) -> None:
    writer.add(placed(1, 3))
    writer.add(placed(2, 3))
    assert "epoch 3 follows 3" in writer.log.faults[0]


def test_an_incarnation_that_moves_back_is_found(writer: Writer) -> None:
    record = BrokerRecord(
        incarnation=5, state=BrokerState.LIVE, endpoints={}, directory_id="", acknowledges_locally=False
    )
    for incarnation in (5, 4):
        writer.add(records={record_key(1): encode(attrs.evolve(record, incarnation=incarnation))})
    assert "incarnation 4 follows 5" in writer.log.faults[0]


def test_an_epoch_that_begins_twice_is_found(writer: Writer) -> None:
    writer.add(placed(1, 3, 3))
    writer.add(attrs.evolve(placed(1, 3, 3), decided_offset=7))
    assert "has an epoch begin elsewhere" in writer.log.faults[0]
