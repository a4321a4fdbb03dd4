"""Groups and offsets of an earlier version move from the metadata to `__consumer_offsets`, wherever a crash comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.coordinator import InternalBatch
from kafscale.cluster.coordinator.partitioning import coordinator_partition
from kafscale.cluster.groups.classic.group import GroupState
from kafscale.cluster.groups.common.events import GroupProtocol
from kafscale.cluster.groups.common.records import GroupRecord, OffsetAndMetadata, TopicPartition
from kafscale.cluster.groups.common.settings import GroupSettings
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.cluster.groups.former_metadata import MOVED_KEY, PREFIX, read_groups
from kafscale.cluster.groups.log_records import group_record, offset_record
from kafscale.cluster.groups.moving import PIECE_COUNT, move_groups
from kafscale.cluster.metadata.base import Entry, Transaction
from kafscale.errors import DamagedObject
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.records import Record
from tests.devtools.fakes.group_log import MemoryOffsetsLog

# As version 0.1 of KafScale wrote them.
OFFSET = b'{"offset":%d,"leader_epoch":3,"metadata":"m","commit_timestamp_ms":1700000000000,"expire_timestamp_ms":null}'
GROUP = (
    b'{"generation_id":4,"protocol_type":"consumer","protocol_name":"range","leader_id":"m1",'
    b'"state_timestamp_ms":1700000000000,"members":[{"member_id":"m1","group_instance_id":null,"client_id":"c",'
    b'"client_host":"/h","session_timeout_ms":10000,"rebalance_timeout_ms":60000,'
    b'"protocols":[{"name":"range","metadata":""},{"name":"sticky","metadata":""}],"assignment":"%s"}]}'
) % b"VPaz"
FORMER = {
    "groups/g/group": GROUP,
    "groups/g/offsets/t/0": OFFSET % 5,
    "groups/g/offsets/t/1": OFFSET % 6,
    "groups/a%2Fb%20%C3%A4/offsets/u/0": OFFSET % 7,
}
EXPECTED = {("g", "t", 0): 5, ("g", "t", 1): 6, ("a/b ä", "u", 0): 7}
NOW_MS = 1_700_000_000_001


class Crash(Exception):
    """The machine has stopped."""


@attrs.define(eq=False, kw_only=True)
class Destination:
    """Writes to a log in memory; the machine stops before the step with the number `crash_at`."""

    log: MemoryOffsetsLog
    partition_count: int = 0
    crash_at: int | None = None
    steps: list[str] = attrs.field(factory=list)

    def step(self, name: str) -> None:
        if len(self.steps) == self.crash_at:
            raise Crash
        self.steps.append(name)

    async def make(self) -> None:
        self.step("make")
        self.partition_count = self.log.partition_count

    async def batches(self, partition: int) -> AsyncIterator[InternalBatch]:
        for batch in self.log.read(partition):
            yield batch

    async def write(self, partition: int, records: Sequence[Record]) -> None:
        self.step("write")
        self.log.append(partition, records)

    async def settle(self) -> None:
        self.step("settle")


@pytest.fixture
async def metadata() -> MemoryMetadataStore:
    store = MemoryMetadataStore()
    await store.commit(Transaction(puts=FORMER | {"topics/t": b"{}"}))
    return store


async def keys(metadata: MemoryMetadataStore) -> set[str]:
    return {entry.key for entry in await metadata.list(PREFIX)}


async def test_all_moves_and_the_metadata_says_so(autojump_clock: MockClock, metadata: MemoryMetadataStore) -> None:
    log = MemoryOffsetsLog()
    destination = Destination(log=log)
    assert await move_groups(metadata, destination, now_ms=NOW_MS)
    assert destination.steps == ["make", "write", "write", "settle"]
    assert await keys(metadata) == {MOVED_KEY}
    assert log.offsets() == EXPECTED
    assert log.groups() == ["g"]

    coordinator = GroupCoordinator(log, GroupSettings(), draining=trio.Event())
    log.load(coordinator)
    group = coordinator.group("g")
    assert group is not None
    assert (group.state, group.generation_id, group.protocol_name) == (GroupState.STABLE, 4, "range")
    (member,) = group.members
    assert (member.member_id, member.assignment) == ("m1", b"abc")
    assert member.protocols == (GroupProtocol("range", b""),)
    assert coordinator.offsets("g")["t"][0] == OffsetAndMetadata(
        offset=5, leader_epoch=3, metadata="m", commit_timestamp_ms=1_700_000_000_000
    )

    assert not await move_groups(metadata, Destination(log=log, partition_count=4, crash_at=0), now_ms=NOW_MS)


@pytest.mark.parametrize("crash_at", range(4))
async def test_a_crash_at_any_step_leaves_all_in_the_metadata(
    autojump_clock: MockClock, metadata: MemoryMetadataStore, crash_at: int
) -> None:
    log = MemoryOffsetsLog()
    destination = Destination(log=log, crash_at=crash_at)
    try:
        await move_groups(metadata, destination, now_ms=NOW_MS)
    except Crash:
        assert await keys(metadata) == set(FORMER)
    else:
        pytest.fail("there are fewer steps")
    again = Destination(log=log, partition_count=log.partition_count if crash_at else 0)
    assert await move_groups(metadata, again, now_ms=NOW_MS)
    assert await keys(metadata) == {MOVED_KEY}
    assert log.offsets() == EXPECTED
    assert log.groups() == ["g"]


async def test_a_crash_before_the_metadata_is_changed_moves_anew(
    autojump_clock: MockClock, metadata: MemoryMetadataStore
) -> None:
    log = MemoryOffsetsLog()

    @attrs.define(eq=False)
    class LosesPower(Destination):
        async def settle(self) -> None:
            metadata.failure = Crash()

    with pytest.raises(Crash):
        await move_groups(metadata, LosesPower(log=log), now_ms=NOW_MS)
    metadata.failure = None
    assert await keys(metadata) == set(FORMER)
    assert await move_groups(metadata, Destination(log=log, partition_count=log.partition_count), now_ms=NOW_MS)
    assert log.offsets() == EXPECTED


async def test_what_an_earlier_attempt_has_left_does_not_come_back(
    autojump_clock: MockClock, metadata: MemoryMetadataStore
) -> None:
    """After a crash the version before was started, which deleted a group, an offset and a generation, and is over."""
    log = MemoryOffsetsLog()
    assert await move_groups(metadata, Destination(log=log), now_ms=NOW_MS)
    gone = OffsetAndMetadata(offset=9, commit_timestamp_ms=1)
    empty = GroupRecord(generation_id=9, state_timestamp_ms=1)
    for group_id in ("g", "gone", "a/b ä"):
        records = [offset_record(group_id, TopicPartition("gone", 0), gone), group_record(group_id, empty)]
        log.append(coordinator_partition(group_id, log.partition_count), records)
    await metadata.commit(Transaction(puts={**FORMER, "groups/g/offsets/t/0": OFFSET % 8}, deletes=[MOVED_KEY]))

    assert await move_groups(metadata, Destination(log=log, partition_count=log.partition_count), now_ms=NOW_MS)
    assert log.offsets() == EXPECTED | {("g", "t", 0): 8}
    assert log.groups() == ["g"]
    loaded = GroupCoordinator(log, GroupSettings(), draining=trio.Event())
    log.load(loaded)
    group = loaded.group("g")
    assert group is not None
    assert group.generation_id == 4


async def test_metadata_without_groups_takes_nothing_back(autojump_clock: MockClock) -> None:
    """A checkpoint from before the first group may be all that is left of the metadata."""
    log = MemoryOffsetsLog()
    place = TopicPartition("t", 0)
    log.append(0, [offset_record("g", place, OffsetAndMetadata(offset=9, commit_timestamp_ms=1))])
    metadata = MemoryMetadataStore()
    assert not await move_groups(metadata, Destination(log=log, partition_count=4), now_ms=NOW_MS)
    assert await keys(metadata) == {MOVED_KEY}
    assert log.offsets() == {("g", "t", 0): 9}


async def test_very_many_offsets_are_written_in_pieces(autojump_clock: MockClock) -> None:
    metadata = MemoryMetadataStore()
    count = 2 * PIECE_COUNT + 1
    await metadata.commit(
        Transaction(puts={f"groups/g/offsets/t/{number}": OFFSET % number for number in range(count)})
    )
    log = MemoryOffsetsLog()
    destination = Destination(log=log)
    assert await move_groups(metadata, destination, now_ms=NOW_MS)
    assert destination.steps.count("write") == 3
    assert log.offsets() == {("g", "t", number): number for number in range(count)}


@pytest.mark.parametrize("key", ["groups/g/unknown", "groups/g/offsets/t/x", "groups/g/group"])
async def test_metadata_that_cannot_be_read_is_named(autojump_clock: MockClock, key: str) -> None:
    store = MemoryMetadataStore()
    await store.commit(Transaction(puts={key: b"{}"}))
    with pytest.raises(DamagedObject, match=key):
        await move_groups(store, Destination(log=MemoryOffsetsLog()), now_ms=NOW_MS)


def test_an_earlier_version_does_not_start_without_its_groups() -> None:
    """It reads every key below the prefix by these same rules, and ends with what it can't read."""
    with pytest.raises(DamagedObject, match="in __consumer_offsets: a newer KafScale is needed': not a key of a group"):
        read_groups([Entry(MOVED_KEY, b"1", 1)])
