"""Offsets of a transaction are told to be committed when they are durable, whatever becomes of others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.coordinator.entries import Appended
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.common.context import GroupMemberIdentity as Member
from kafscale.cluster.transactions.ledger import ProducerIdentity as Producer
from kafscale.cluster.transactions.offset_commits import (
    DURABLE_SECONDS,
    PIECE_COUNT,
    OffsetsOfTransaction,
    TransactionalOffsets,
)
from kafscale.errors import KafkaError
from kafscale.log.wal.journal import Round
from kafscale.wire.error_codes import COORDINATOR_NOT_AVAILABLE, NONE, NOT_COORDINATOR
from kafscale.wire.internal_topics.consumer_offsets import OffsetCommitValue

COUNT = PIECE_COUNT + 1


@attrs.define(eq=False)
class Pieces(TransactionalOffsets):
    """Appends the first piece, which becomes durable with the round, and is refused the second."""

    round: Round = attrs.field(kw_only=True)

    async def _enrol(self, wanted: OffsetsOfTransaction, enrolment: object) -> None:
        await trio.lowlevel.checkpoint()

    def _append(self, wanted: OffsetsOfTransaction, enrolment: object, offsets: Any) -> Appended:
        if len(offsets) < PIECE_COUNT:
            raise KafkaError(NOT_COORDINATOR)
        return Appended(self.round)


@pytest.mark.parametrize("is_durable", [False, True])
async def test_offsets_before_a_refused_piece_are_durable_or_refused_too(
    autojump_clock: MockClock, is_durable: bool
) -> None:
    round = Round()
    nothing = cast(Any, SimpleNamespace())
    offsets = Pieces(internal=nothing, groups=nothing, transactions=nothing, topic="__consumer_offsets", round=round)
    wanted = OffsetsOfTransaction(
        producer=Producer("id", 1, 0),
        transaction_version=2,
        group_id="g",
        member=Member(member_id="", group_instance_id=None, generation_id=-1),
        offsets={TopicPartition("t", n): OffsetCommitValue(offset=n, commit_timestamp_ms=0) for n in range(COUNT)},
    )
    async with trio.open_nursery() as nursery:

        async def become_durable() -> None:
            await trio.sleep(DURABLE_SECONDS / 2)
            round.succeed()

        if is_durable:
            nursery.start_soon(become_durable)
        began = trio.current_time()
        codes = await offsets.commit(wanted)
        assert trio.current_time() - began == DURABLE_SECONDS / (2 if is_durable else 1)
    first = NONE if is_durable else COORDINATOR_NOT_AVAILABLE
    assert [codes.get(at, NONE) for at in wanted.offsets] == [first] * PIECE_COUNT + [NOT_COORDINATOR]
