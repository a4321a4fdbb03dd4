"""What readers of a bucket see that several brokers share: topics of this moment, and what its leaders have decided."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.broker import Broker
from kafscale.cluster.membership.records import Placement, encode_row
from kafscale.cluster.registries.topics import NewTopic
from kafscale.config import Durability, StoreUrl
from kafscale.errors import DamagedObject, Fenced
from kafscale.formats.metadata_head import head_key
from kafscale.formats.placements import Beginning, decode_beginnings
from kafscale.formats.segment import EpochStart
from kafscale.spark.bucket import catalog as catalogs
from kafscale.spark.bucket.bucket import BucketOptions
from kafscale.spark.bucket.catalog import Catalog, Undecided
from kafscale.spark.bucket.metadata import Metadata
from kafscale.spark.bucket.reading import SplitReader
from kafscale.spark.bucket.splits import Extent, plan
from kafscale.store.base import ObjectStore
from kafscale.store.memory import MemoryStore
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes
from tests.cluster.membership.test_several import (
    SOON_SECONDS,
    TOPIC,
    Machine,
    create,
    keys_of,
    led_by,
    machines,
    produce,
    produce_in_vain,
    topic_at,
    until,
    values,
)
from tests.cluster.membership.test_unsharing import ending, from_two_to_one
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_settings
from tests.devtools.fakes.memory_log import write_files
from tests.spark.logged_bucket import CountingBucket

NAMESPACE = "default"


@attrs.define(eq=False)
class Reader:
    """Reads the bucket of brokers in memory as a job does, from a copy on disk that each look brings up to date."""

    store: ObjectStore
    path: Path
    with_log: bool = False
    catalog: Catalog = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.path.mkdir(exist_ok=True)
        bucket = CountingBucket(BucketOptions(url=StoreUrl.parse(f"file:{self.path}")).open())
        self.catalog = Catalog(bucket, with_log=self.with_log)

    async def look(self) -> None:
        await write_files(self.store, self.path)
        self.catalog.look_again()

    async def topics(self) -> list[str]:
        await self.look()
        return [name for name in self.catalog.topics() if not name.startswith("__")]

    async def values(self, index: int = 0) -> list[bytes]:
        await self.look()
        log = self.catalog.partitions(TOPIC)[index]
        splits = plan(self.catalog, [Extent(log=log, start_offset=log.start_offset, end_offset=log.end_offset)])
        reader = SplitReader(
            bucket=self.catalog.bucket,
            namespace=NAMESPACE,
            columns=["value"],
            fail_on_data_loss=True,
            committed_only=False,
            with_log=self.with_log,
        )
        return [row["value"] for rows in reader.read_all(splits) for row in rows.to_pylist()]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no leader: none of them goes on while a test reads."""
    monkeypatch.setattr(catalogs, "DECISION_WAIT_SECONDS", 0.0)


async def test_new_topics_appear_and_deleted_topics_disappear_at_once(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    one, two = machines(2)
    async with one.run(), two.run() as b:
        reader = Reader(one.bucket, tmp_path)
        await create(b.broker, 3)
        assert await reader.topics() == [TOPIC]
        assert sorted(reader.catalog.partitions(TOPIC)) == [0, 1, 2]
        await b.broker.services.topics.create([NewTopic(name="later", partition_count=1)])
        assert await reader.topics() == ["later", TOPIC]
        await b.broker.services.topics.delete([TOPIC])
        assert await reader.topics() == ["later"]
        assert reader.catalog.partitions(TOPIC) == {}


async def test_a_look_gets_the_head_alone_where_that_has_all_that_is_new(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    (one,) = machines(1)
    async with one.run() as a:
        reader = Reader(one.bucket, tmp_path)
        await create(a.broker, 1)
        await reader.topics()
        assert isinstance(reader.catalog.bucket, CountingBucket)
        for name in ("b", "c"):
            await a.broker.services.topics.create([NewTopic(name=name, partition_count=1)])
            await reader.look()
            reader.catalog.bucket.requests.clear()
            assert name in reader.catalog.metadata.topics
            assert reader.catalog.bucket.requests == [f"get {head_key(NAMESPACE)}"]
        await trio.sleep(60.0)  # checkpoints have what the head has not any more
        for number in range(3):
            await a.broker.services.topics.create([NewTopic(name=f"d{number}", partition_count=1)])
            await trio.sleep(20.0)
        assert await reader.topics() == ["b", "c", "d0", "d1", "d2", TOPIC]


async def test_late_uploads_of_a_superseded_broker_are_not_read(
    autojump_clock: MockClock, tmp_path: Path, impatient: None
) -> None:
    """The upload hangs until the next leader has listed the partition; nothing that it has decided has the record."""
    bucket = MemoryStore()
    late, looking = FaultyStore(bucket), FaultyStore(bucket)
    upload = late.hold(On("put*", "*.kfs"))
    settings = memory_settings(several_brokers=True, broker_id=1, durability=Durability.SEGMENT)
    reader = Reader(bucket, tmp_path / "before")

    async def run_first(*, task_status: trio.TaskStatus[Broker]) -> None:
        try:
            await Broker(settings).run_on(Machine(late, 1).parts(), task_status=task_status)
        except* Fenced:
            pass

    async with trio.open_nursery() as nursery, trio.open_nursery() as clients:
        first = MemoryBroker(await nursery.start(run_first), clients)
        await create(first.broker, 1)
        assert await reader.values() == []
        clients.start_soon(produce_in_vain, first)
        await upload.wait_arrived()
        listing = looking.hold(On("list", "default/*"), after_effect=True)
        nursery.start_soon(open_late, upload, listing, bucket, reader, tmp_path)
        async with Machine(looking, 1).run(Durability.SEGMENT) as running:
            assert await values(running, 0) == []
            assert await keys_of(bucket)
            for each in (reader, Reader(bucket, tmp_path / "after")):
                assert await each.values() == []
            assert await produce(running, 0, b"new") == error_codes.NONE
            for each in (reader, Reader(bucket, tmp_path / "new")):
                assert await each.values() == [b"new"]
        clients.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def open_late(upload, listing, bucket: ObjectStore, reader: Reader, path: Path) -> None:
    """Let the upload come between the listing of the next leader and its decision, and read meanwhile."""
    await listing.wait_arrived()
    upload.open()
    with trio.fail_after(SOON_SECONDS):
        while not any(key.endswith(".kfs") for key in await keys_of(bucket)):
            await trio.sleep(0.05)
    assert await reader.values() == [], "it ends where it did when it was decided"
    with pytest.raises(Undecided, match="has not told yet which records count"):
        await Reader(bucket, path / "meanwhile").values()
    listing.open()


@pytest.mark.parametrize("durability", [Durability.SEGMENT, Durability.S3_WAL])
async def test_partitions_that_move_among_brokers_are_read_whole(
    autojump_clock: MockClock, tmp_path: Path, durability: Durability
) -> None:
    one, two = machines(2)
    reader = Reader(one.bucket, tmp_path, with_log=durability is Durability.S3_WAL)
    async with one.run(durability) as a:
        await create(a.broker, 2)
        for index in range(2):
            assert await produce(a, index, b"first") == error_codes.NONE
        async with two.run(durability) as b:
            await topic_at(b.broker)
            await until(lambda: len(led_by(b.broker)) == 1)
            (moved,) = led_by(b.broker)
            assert await produce(b, moved, b"second") == error_codes.NONE
            assert await reader.values(moved) == [b"first", b"second"]
            assert await reader.values(1 - moved) == [b"first"]


def test_placement_rows_written_by_brokers_are_decoded() -> None:
    placements = [Placement(1, 7, 7, 40), Placement(2, 9, 7, 50, target=1, replicas=(2, 1)), Placement(1, 8, -1, -1)]
    found = decode_beginnings(encode_row(placements))
    assert found == [Beginning(each.epoch, each.decided_epoch, each.decided_offset) for each in placements]
    assert [each.is_decided for each in found] == [True, False, False]
    assert [each.begun for each in found] == [(EpochStart(7, 40),), (EpochStart(7, 50),), ()]
    assert Metadata(rows={b"t": {100: encode_row(placements)}}).beginnings(b"t").keys() == {100, 101, 102}
    with pytest.raises(DamagedObject, match="damaged row of placements"):
        Metadata(rows={b"t": {0: b"[]"}}).beginnings(b"t")


@pytest.mark.parametrize("durability", [Durability.WAL, Durability.S3_WAL])
async def test_a_bucket_that_one_broker_has_to_itself_again_is_read_on(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture, durability: Durability
) -> None:
    one, two = machines(2)
    await from_two_to_one(one, two, durability)
    flush_seconds = 3600.0 if durability is Durability.S3_WAL else 0.5
    reader = Reader(one.bucket, tmp_path, with_log=durability is Durability.S3_WAL)
    assert await reader.topics() == [TOPIC]
    assert await reader.values(0) == [b"0"]
    await ending(one).run(1, "directory")
    assert await reader.topics() == [TOPIC]
    assert await reader.values(0) == [b"0"]
    async with one.run(durability, several_brokers=False, flush_interval_seconds=flush_seconds) as a:
        await topic_at(a.broker)
        await create(a.broker, 1, "alone")
        assert await produce(a, 0, b"alone") == error_codes.NONE
        await trio.sleep(30.0)
        assert await reader.topics() == ["alone", TOPIC]
        assert await reader.values(0) == [b"0", b"alone"]
        assert not [each for each in caplog.messages if "goes with the head" in each]
    async with one.run(durability) as a:
        await topic_at(a.broker)
        await create(a.broker, 1, "again")
        assert await reader.topics() == ["again", "alone", TOPIC]
        assert await reader.values(0) == [b"0", b"alone"]
