"""Verify and repair: each kind of damage is found and said where, and what is rebuilt is what was there."""

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.formats.manifest import Manifest, segment_of
from kafscale.formats.manifest_checkpoint import decode_manifests
from kafscale.formats.segment import EpochStart, decode_footer, encode_footer
from kafscale.formats.transactions import ProducedBatch, Producer
from kafscale.formats.wal_entries import FILE_HEADER_BYTES, FileHeader, WalEntry, encode, encode_file_header
from kafscale.formats.wal_objects import START
from kafscale.formats.wal_runs import list_log
from kafscale.log.bucket.manifest_keeper import encode_manifests
from kafscale.log.check.verification import ORPHAN_GRACE_SECONDS, VerifiedTopic, Verifier
from kafscale.log.repair.verify_segment import FindingKind
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.segment_objects import (
    CREATED_MS,
    make_batch,
    make_batches,
    version_1_key,
    version_1_objects,
    version_2_objects,
)

TOPIC_ID = bytes(range(16))
BATCHES = make_batches(100, 4)  # of 3 records each: offsets 100 to 111
SIZE = len(BATCHES[0])
BODY_END = 32 + 4 * SIZE
V1 = version_1_objects(version_1_key("orders", 0, 100), BATCHES, interval=6)


def key(base_offset=100, generation=0, partition=0):
    return SegmentKey(
        topic="orders", topic_id=TOPIC_ID, partition=partition, base_offset=base_offset, generation=generation
    )


V2 = version_2_objects(key(), BATCHES, tells_earliest=False)  # which no repair would bring back
BOTH = pytest.mark.parametrize("objects", [V1, V2], ids=["version 1", "version 2"])


async def store_of(*objects):
    store = MemoryStore(clock_ms=lambda: CREATED_MS)
    for each in objects:
        await each.put(store)
    return store


def verifier_of(store, topics=None, now_ms=CREATED_MS):
    return Verifier(store=store, namespace="default", topics=topics, clock_ms=lambda: now_ms)


async def verify(store, *, repair=False, **arguments):
    verifier = verifier_of(store, **arguments)
    await verifier.list_bucket()
    await verifier.read_bucket(lambda _: None)
    if repair:
        await verifier.repair()
    return verifier.report


@attrs.define
class MemoryPartition:
    """Of a partition what a checkpoint of the manifests takes."""

    segments: list
    topic_id: bytes = TOPIC_ID
    index: int = 0
    encoded_end: bytes = b""
    quarantined: dict = attrs.field(factory=dict)
    missing: dict = attrs.field(factory=dict)

    @property
    def manifest(self):
        return Manifest(self.segments)


def told(report):
    return [(finding.name, finding.kind, finding.position) for finding in report.findings]


def flipped(data, position, bit=0):
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


async def contents(store):
    return {info.key: (await store.get(info.key)).data async for page in store.list("") for info in page}


async def test_a_whole_bucket_is_whole_and_counted():
    store = await store_of(
        V1,
        version_1_objects(version_1_key("orders", 0, 112), make_batches(112, 1)),
        V2,
        version_2_objects(key(112), make_batches(112, 2)),
        version_2_objects(key(0, partition=1), make_batches(0, 1)),
    )
    report = await verify(store)
    assert report.findings == []
    assert report.is_whole
    assert (report.objects, report.segments, report.partitions) == (10, 5, 3)
    assert (report.batches, report.records) == (12, 36)


async def test_an_empty_bucket_is_whole():
    assert (await verify(MemoryStore())).is_whole


# ---- one segment ----------------------------------------------------------------------------------------------------


@BOTH
async def test_a_damaged_batch_is_named_with_its_place_and_left_alone(objects):
    store = await store_of(attrs.evolve(objects, kfs=flipped(objects.kfs, 32 + 2 * SIZE + 70)))
    before = await contents(store)
    report = await verify(store, repair=True)
    assert told(report) == [(objects.key.key, FindingKind.BATCHES, 32 + 2 * SIZE)]
    assert f"the batch at byte {32 + 2 * SIZE}: the CRC" in report.findings[0].message
    assert not report.is_whole
    assert await contents(store) == before


@BOTH
async def test_a_changed_base_offset_is_found_although_no_batch_crc_covers_base_offsets(objects):
    store = await store_of(attrs.evolve(objects, kfs=flipped(objects.kfs, 32 + SIZE + 6)))
    report = await verify(store)
    assert (objects.key.key, FindingKind.BATCHES, 32 + SIZE) in told(report)


@BOTH
async def test_a_leader_epoch_which_only_the_crc_of_all_batches_covers_is_found(objects):
    store = await store_of(attrs.evolve(objects, kfs=flipped(objects.kfs, 32 + SIZE + 13)))
    report = await verify(store)
    assert told(report) == [(objects.key.key, FindingKind.BATCHES, None)]
    assert "the batches' CRC-32C is" in report.findings[0].message


@BOTH
async def test_a_missing_index_is_written_again(objects):
    store = await store_of(objects)
    name = objects.key.of_kind("index").key
    await store.delete([name])
    report = await verify(store, repair=True)
    assert [(finding.name, finding.kind, finding.repaired) for finding in report.findings] == [
        (name, FindingKind.INDEX, True)
    ]
    assert report.is_whole
    assert (await verify(store)).findings == []


async def test_a_rebuilt_version_2_index_equals_the_lost_index():
    store = await store_of(V2)
    await store.delete([V2.key.of_kind("index").key])
    await verify(store, repair=True)
    assert (await store.get(V2.key.of_kind("index").key)).data == V2.index


@BOTH
@pytest.mark.parametrize(
    "damage", [lambda data: flipped(data, 20), lambda data: data[:-1], lambda _: b"", lambda _: b"x"]
)
async def test_a_damaged_index_is_written_again_and_the_kfs_left_alone(objects, damage):
    store = await store_of(attrs.evolve(objects, index=damage(objects.index)))
    etag = (await store.head(objects.key.key)).etag
    report = await verify(store)
    assert told(report) == [(objects.key.of_kind("index").key, FindingKind.INDEX, None)]
    assert not report.is_whole
    assert (await verify(store, repair=True)).is_whole
    assert (await verify(store)).findings == []
    assert (await store.head(objects.key.key)).etag == etag


async def test_an_index_of_version_1_that_points_into_a_batch_is_written_again():
    entry = (103).to_bytes(8, "big") + (32 + SIZE + 1).to_bytes(4, "big")
    index = V1.index[:6] + (2).to_bytes(4, "big") + V1.index[10:28] + entry
    store = await store_of(attrs.evolve(V1, index=index))
    report = await verify(store, repair=True)
    assert [(finding.kind, finding.repaired) for finding in report.findings] == [(FindingKind.INDEX, True)]
    assert f"offset 103 begins at byte {32 + SIZE + 1}" in report.findings[0].message


DAMAGED_ENDS = [lambda kfs: flipped(kfs, len(kfs) - 1), lambda kfs: kfs[:-1], lambda kfs: kfs[:BODY_END]]


@BOTH
@pytest.mark.parametrize("damage", DAMAGED_ENDS, ids=["flipped", "cut by one", "cut to the batches"])
@pytest.mark.parametrize("with_index", [True, False])
async def test_a_damaged_footer_is_made_again(objects, damage, with_index):
    store = await store_of(attrs.evolve(objects, kfs=damage(objects.kfs)))
    if not with_index:
        await store.delete([objects.key.of_kind("index").key])
    report = await verify(store)
    assert (objects.key.key, FindingKind.FOOTER, BODY_END) in told(report)
    assert not report.is_whole
    assert (await verify(store, repair=True)).is_whole
    assert (await store.get(objects.key.key)).data == objects.kfs
    assert (await verify(store)).findings == []


@BOTH
async def test_a_segment_cut_within_its_batches_is_not_made_shorter(objects):
    store = await store_of(attrs.evolve(objects, kfs=objects.kfs[: BODY_END - SIZE]))
    before = await contents(store)
    report = await verify(store, repair=True)
    assert not report.is_whole
    assert {finding.name for finding in report.findings if finding.damage} == {objects.key.key}
    assert (await contents(store))[objects.key.key] == before[objects.key.key]


async def test_a_damaged_header_is_made_again():
    store = await store_of(attrs.evolve(V2, kfs=flipped(V2.kfs, 17)))
    report = await verify(store, repair=True)
    assert [(finding.kind, finding.position, finding.repaired) for finding in report.findings] == [
        (FindingKind.HEADER, 0, True)
    ]
    assert (await store.get(V2.key.key)).data == V2.kfs


async def test_a_rebuilt_footer_takes_producers_and_epochs_from_the_segment_before():
    first = version_2_objects(key(100), BATCHES, leader_epoch=3)
    footer = attrs.evolve(
        decode_footer(first.index, "x"),
        producers=[Producer(7, 0, [ProducedBatch(0, 2, 103, 105)], CREATED_MS)],
    )
    first = attrs.evolve(first, kfs=first.kfs[:BODY_END] + encode_footer(footer), index=encode_footer(footer))
    second = version_2_objects(
        key(112), [make_batch(112, [b"a", b"b"], producer_id=7, base_sequence=3)], leader_epoch=4
    )
    store = await store_of(first, attrs.evolve(second, kfs=second.kfs[:-4] + b"....", index=b"damaged"))
    assert (await verify(store, repair=True)).is_whole
    rebuilt = decode_footer((await store.get(second.key.key)).data, "x")
    assert [list(producer.batches) for producer in rebuilt.producers] == [
        [ProducedBatch(0, 2, 103, 105), ProducedBatch(3, 4, 112, 113)]
    ]
    assert rebuilt.epochs == [EpochStart(3, 100), EpochStart(4, 112)]
    assert rebuilt.identity == decode_footer(second.index, "x").identity


async def test_an_object_of_another_segment_under_a_key_is_damage():
    store = await store_of(attrs.evolve(V2, key=key(100, partition=1)))
    before = await contents(store)
    report = await verify(store, repair=True)
    assert [finding.kind for finding in report.findings] == [FindingKind.FOOTER]
    assert "another segment" in report.findings[0].message
    assert await contents(store) == before


async def test_a_repair_yields_to_a_concurrent_writer():
    class Overtaken(MemoryStore):
        """Somebody else writes the object between the repair's read and its write."""

        async def put_if_match(self, key, parts, etag):
            await self.put(key, [V2.kfs])
            return await super().put_if_match(key, parts, etag)

    store = Overtaken()
    await attrs.evolve(V2, kfs=V2.kfs[:-1]).put(store)
    report = await verify(store, repair=True)
    assert [finding.repaired for finding in report.findings] == [False]
    assert (await verify(store)).is_whole


@BOTH
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_damage_is_found_and_no_repair_changes_a_batch(objects, data):
    """Any flipped bit, cut or lost object: found; and what a repair says is whole has all of the batches."""
    kfs, index = objects.kfs, objects.index
    what = data.draw(st.sampled_from(["kfs", "index", "both", "cut", "no index"]))
    if what in ("kfs", "both"):
        position = data.draw(st.integers(0, len(kfs) - 1).filter(lambda at: objects is V2 or not 20 <= at < 28))
        kfs = flipped(kfs, position, data.draw(st.integers(0, 7)))
    if what in ("index", "both"):
        covered = (
            len(index) - 1 if objects is V2 else 9
        )  # nothing covers an interval, or the numbers of entries left out
        index = flipped(index, data.draw(st.integers(0, covered)), data.draw(st.integers(0, 7)))
    if what == "cut":
        kfs = kfs[: data.draw(st.integers(0, len(kfs) - 1))]

    async def run():
        store = await store_of(attrs.evolve(objects, kfs=kfs, index=index))
        if what == "no index":
            await store.delete([objects.key.of_kind("index").key])
        assert not (await verify(store)).is_whole
        report = await verify(store, repair=True)
        again = await verify(store)
        assert again.is_whole == report.is_whole
        stored = (await store.get(objects.key.key)).data
        if report.is_whole:
            assert stored[32:BODY_END] == objects.kfs[32:BODY_END]
            assert again.records == 12
        elif what in ("kfs", "cut"):
            assert stored == kfs

    trio.run(run)


# ---- a partition ----------------------------------------------------------------------------------------------------


async def test_a_gap_is_found():
    store = await store_of(V2, version_2_objects(key(115), make_batches(115, 1)))
    report = await verify(store)
    assert told(report) == [(key(115).key, FindingKind.GAP, None)]
    assert "offsets 112 to 114 are missing" in report.findings[0].message


async def test_an_overlap_is_found():
    store = await store_of(V2, version_2_objects(key(109), make_batches(109, 4)))
    assert told(await verify(store)) == [(key(109).key, FindingKind.OVERLAP, None)]


async def test_segments_covered_by_a_newer_generation_are_not_damage():
    merged = version_2_objects(key(100, generation=1), make_batches(100, 6))
    report = await verify(await store_of(V2, merged))
    assert told(report) == [(V2.key.key, FindingKind.SUPERSEDED, None)]
    assert report.is_whole


async def test_a_gap_beside_a_merged_segment_is_damage_too():
    """Compaction keeps the first and the last offset of what it compacts."""
    report = await verify(await store_of(V2, version_2_objects(key(115, generation=1), make_batches(115, 1))))
    assert [finding.kind for finding in report.findings if finding.damage] == [FindingKind.GAP]


async def verify_with_manifests(*objects, then, log_start_offset=100, metadata_is_current=True):
    """What a broker with these segments has noted, held against what is there `then`."""
    partition = MemoryPartition([segment_of(each.key, decode_footer(each.index, "x")) for each in objects])
    manifests = decode_manifests("x", b"".join(await encode_manifests([partition])))
    verifier = verifier_of(await store_of(*then), topics={TOPIC_ID: VerifiedTopic("orders", 1, {0: log_start_offset})})
    verifier.manifests = manifests
    verifier.metadata_is_current = metadata_is_current
    await verifier.list_bucket()
    await verifier.read_bucket(lambda _: None)
    return verifier.report


async def test_a_missing_last_segment_listed_in_a_checkpoint_is_damage():
    last = version_2_objects(key(112), make_batches(112, 2))
    assert (await verify_with_manifests(V2, last, then=[V2, last])).findings == []
    (finding,) = (await verify_with_manifests(V2, last, then=[V2])).findings
    assert (finding.name, finding.kind, finding.damage) == ("orders-0", FindingKind.GAP, True)
    assert "offsets 112 to 117" in finding.message
    assert "missing from the end of the log: consumers are led over them" in finding.message
    assert (await verify_with_manifests(V2, last, then=[])).findings != []


async def test_a_hole_at_the_end_is_damage_even_with_outdated_metadata():
    last = version_2_objects(key(112), make_batches(112, 2))
    assert not (await verify_with_manifests(V2, last, then=[V2], metadata_is_current=False)).is_whole
    assert (await verify_with_manifests(V2, last, then=[last], metadata_is_current=False)).is_whole


async def test_a_segment_that_was_merged_or_let_go_since_the_checkpoint_is_not_missing():
    last = version_2_objects(key(112), make_batches(112, 2))
    merged = version_2_objects(key(100, generation=1), make_batches(100, 6))
    assert (await verify_with_manifests(V2, last, then=[merged])).is_whole
    assert (await verify_with_manifests(V2, last, then=[last], log_start_offset=112)).is_whole


async def test_a_gap_at_the_front_is_not_damage_with_outdated_metadata():
    verifier = verifier_of(await store_of(V2), topics={TOPIC_ID: VerifiedTopic("orders", 1, {0: 90})})
    verifier.metadata_is_current = False
    await verifier.list_bucket()
    await verifier.read_bucket(lambda _: None)
    assert told(verifier.report) == [(key().key, FindingKind.GAP, None)]
    assert verifier.report.is_whole


async def test_segments_missing_before_the_log_start_were_deleted():
    store = await store_of(V2)
    known = VerifiedTopic("orders", 1, {0: 100})
    assert (await verify(store, topics={TOPIC_ID: known})).findings == []
    report = await verify(store, topics={TOPIC_ID: attrs.evolve(known, log_start_offsets={0: 90})})
    assert "offsets 90 to 99 are missing" in report.findings[0].message


async def test_topics_and_partitions_missing_in_the_metadata_are_noted():
    store = await store_of(V2, version_2_objects(key(0, partition=4), make_batches(0, 1)), V1)
    known = VerifiedTopic("orders", 2, {0: 100})
    report = await verify(store, topics={TOPIC_ID: known})
    assert [finding.kind for finding in report.findings] == [FindingKind.UNKNOWN_TOPIC] * 2
    assert report.is_whole


LATER_MS = CREATED_MS + int(ORPHAN_GRACE_SECONDS * 1000) + 1
ALL_LIVE, ALL_DELETED = VerifiedTopic("orders", 1, {0: 100}), VerifiedTopic("orders", 1, {0: 112})
BEFORE = version_2_objects(key(94), make_batches(94, 2))
AFTER = version_2_objects(key(112), make_batches(112, 1))
MERGED = version_2_objects(key(100, generation=1), make_batches(100, 5))


@pytest.mark.parametrize(
    ("others", "topics"),
    [([MERGED], None), ([AFTER], {TOPIC_ID: ALL_DELETED}), ([], {})],
    ids=["merged", "retention", "topic deleted"],
)
async def test_an_orphan_index_is_removed_only_when_old(others, topics):
    store = await store_of(V2, *others)
    await store.delete([V2.key.key])
    young = await verify(store, topics=topics, repair=True)
    orphans = [finding for finding in young.findings if finding.kind is FindingKind.ORPHAN_INDEX]
    assert [finding.can_repair for finding in orphans] == [False]
    old = await verify(store, topics=topics, repair=True, now_ms=LATER_MS)
    assert [finding.repaired for finding in old.findings if finding.kind is FindingKind.ORPHAN_INDEX] == [True]
    assert old.is_whole
    assert V2.key.of_kind("index").key not in await contents(store)


@pytest.mark.parametrize("index", ["whole", "damaged"])
@pytest.mark.parametrize(
    ("others", "topics"),
    [([], None), ([BEFORE], None), ([BEFORE, AFTER], None), ([AFTER], {TOPIC_ID: ALL_LIVE})],
    ids=["alone", "at the end", "between others", "at the start"],
)
async def test_an_index_with_a_lost_kfs_is_damage_and_is_kept(others, topics, index):
    """A bucket that had lost records was whole."""
    store = await store_of(V2, *others)
    await store.delete([V2.key.key])
    name = V2.key.of_kind("index").key
    if index == "damaged":
        await store.put(name, [b"?"])
    report = await verify(store, topics=topics, repair=True, now_ms=LATER_MS)
    assert not report.is_whole
    (found,) = [finding for finding in report.findings if finding.name == name]
    assert (found.kind, found.damage, found.can_repair) == (FindingKind.ORPHAN_INDEX, True, False)
    assert f"no other object holds its offsets 100 to {111 if index == 'whole' else 100}" in found.message
    assert "kafscale verify --data-dir DIR" in found.message
    assert name in await contents(store)


async def test_an_index_below_the_first_segment_is_not_damage_without_current_metadata():
    """Without metadata, or with that of the last checkpoint, retention may have begun to delete it."""
    store = await store_of(V2, AFTER)
    await store.delete([V2.key.key])
    report = await verify(store, now_ms=LATER_MS)
    assert [(finding.damage, finding.can_repair) for finding in report.findings] == [(False, False)]
    assert "unless they were deleted since the last checkpoint" in report.findings[0].message


@pytest.mark.parametrize("logged_count", [4, 3])
async def test_an_index_without_kfs_is_not_damage_if_the_wal_has_its_records(logged_count):
    disk = MemoryDisk()
    name, data = wal_file(1, *list(SAME)[:logged_count])
    await disk.create(name, len(data), data)
    store = await store_of(V2, BEFORE)
    await store.delete([V2.key.key])
    verifier = verifier_of(store, {TOPIC_ID: VerifiedTopic("orders", 1, {0: 94})}, now_ms=LATER_MS)
    await verifier.read_wal(disk)
    await verifier.list_bucket()
    await verifier.read_bucket(lambda _: None)
    (found,) = [finding for finding in verifier.report.findings if finding.kind is FindingKind.ORPHAN_INDEX]
    assert found.damage is (logged_count < 4)
    assert "--data-dir" not in found.message


async def test_an_unknown_object_is_reported_and_left_alone():
    store = await store_of(V2)
    await store.put("default/notes.txt", [b"mine"])
    await store.put("other/notes.txt", [b"of another namespace"])
    report = await verify(store, repair=True)
    assert told(report) == [("default/notes.txt", FindingKind.UNKNOWN_OBJECT, None)]
    assert report.is_whole
    assert "default/notes.txt" in await contents(store)


async def test_an_object_deleted_during_verification_is_not_damage():
    store = await store_of(V2, version_2_objects(key(112), make_batches(112, 1)))
    verifier = verifier_of(store)
    await verifier.list_bucket()
    await store.delete([V2.key.key, V2.key.of_kind("index").key])
    await verifier.read_bucket(lambda _: None)
    assert told(verifier.report) == [(V2.key.key, FindingKind.CHANGED, None)]
    assert verifier.report.is_whole


async def test_verify_reports_growing_progress_up_to_the_last_byte():
    seen = []
    verifier = verifier_of(await store_of(V1, V2))
    total_bytes = await verifier.list_bucket()
    await verifier.read_bucket(seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == len(V1.kfs) + len(V2.kfs) <= total_bytes


# ---- the write-ahead log --------------------------------------------------------------------------------------------

KNOWN = {TOPIC_ID: VerifiedTopic("orders", 1, {0: 100})}


SAME = {100 + 3 * number: batch for number, batch in enumerate(BATCHES)}


def wal_file(sequence, *base_offsets, topic_id=TOPIC_ID, leader_epoch=0, batches=SAME):
    """One file, each entry written after the one before it was durable."""
    number = sequence
    data = encode_file_header(FileHeader(number=number, sequence=sequence, salt=9, created_ms=CREATED_MS, started=True))
    for position, base_offset in enumerate(base_offsets):
        batch = batches.get(base_offset) or make_batch(base_offset, [b"x"])
        entry = WalEntry(topic_id, 0, leader_epoch, base_offset, batch)
        entry.sequence = sequence + position
        data += b"".join(encode([entry], durable_sequence=entry.sequence - 1, salt=9))
    return f"wal-{number:020d}.log", data


async def verify_with_wal(*files, topics=KNOWN, segment=V2, deleted=()):
    verifier = verifier_of(await store_of(segment), topics=topics)
    verifier.deleted = deleted
    disk = MemoryDisk()
    for name, data in files:
        await disk.create(name, len(data), data)
    await verifier.read_wal(disk)
    await verifier.list_bucket()
    await verifier.read_bucket(lambda _: None)
    return verifier.report


async def test_a_wal_that_continues_after_the_bucket_is_whole():
    report = await verify_with_wal(wal_file(1, 106, 109, 112), wal_file(4, 113))
    assert (report.findings, report.wal_entries) == ([], 4)


async def test_a_hole_between_bucket_and_log_is_found():
    (finding,) = (await verify_with_wal(wal_file(1, 113, 114))).findings
    assert finding.kind is FindingKind.WAL
    assert "orders-0 goes on at offset 113, but 112 is the next" in finding.message
    assert finding.position > FILE_HEADER_BYTES


async def test_log_and_segment_must_agree_where_they_overlap():
    other = {109: make_batch(109, [b"a", b"b", b"c"])}
    (finding,) = (await verify_with_wal(wal_file(1, 106, 109, 112, batches=SAME | other))).findings
    assert (finding.kind, finding.damage) == (FindingKind.WAL, True)
    assert f"offset 109: {key(100).key} has another batch there" in finding.message
    (finding,) = (await verify_with_wal(wal_file(1, 110, 112))).findings
    assert "offset 110" in finding.message
    assert "has no batch there" in finding.message


async def test_a_batch_that_reaches_beyond_the_last_segment_is_found():
    straddling = {109: make_batch(109, [b"x"] * 5)}
    report = await verify_with_wal(wal_file(1, 109, 114, batches=straddling))
    assert any("of which only the first are there already" in finding.message for finding in report.findings)


async def test_wal_entries_replaced_by_a_later_leader_epoch_are_not_damage():
    newer = version_2_objects(key(), BATCHES, leader_epoch=3)
    report = await verify_with_wal(wal_file(1, 109, 113, leader_epoch=2, batches={}), segment=newer)
    assert report.is_whole
    assert [finding.kind for finding in report.findings] == [FindingKind.SUPERSEDED, FindingKind.SUPERSEDED]


async def test_a_damaged_entry_that_was_acknowledged_is_found_and_a_torn_tail_is_not():
    name, data = wal_file(1, 112, 113)
    entry_bytes = (len(data) - FILE_HEADER_BYTES) // 2
    (finding,) = (await verify_with_wal((name, flipped(data, FILE_HEADER_BYTES + entry_bytes - 1)))).findings
    assert "entry 1 was acknowledged and is damaged" in finding.message
    assert (await verify_with_wal((name, data[:-1]))).is_whole


async def test_a_missing_file_and_a_file_behind_a_torn_one_are_found():
    found = [each.message for each in (await verify_with_wal(wal_file(1, 112), wal_file(3, 113))).findings]
    assert found[:2] == [
        "at least 1 acknowledged entries are missing from the write-ahead log",
        "is missing or empty",
    ]
    assert "begins with entry 3, but 2 follows" in found[2]
    name, data = wal_file(1, 112, 113)
    report = await verify_with_wal((name, flipped(data, len(data) - 1)), wal_file(2, 113))
    assert "which is damaged" in report.findings[0].message


async def test_entries_of_deleted_topics_are_passed_over():
    assert (await verify_with_wal(wal_file(1, 500, topic_id=bytes(16)), deleted=[bytes(16)])).is_whole


@pytest.mark.parametrize("topics", [None, KNOWN])
async def test_entries_of_topics_that_the_metadata_does_not_know_were_passed_over(topics):
    name, data = wal_file(1, 500, 503, topic_id=bytes(16))
    (finding,) = [
        each for each in (await verify_with_wal((name, data), topics=topics)).findings if each.kind is FindingKind.WAL
    ]
    assert (finding.name, finding.damage) == (f"memory/{name}", True)
    assert "2 record batches, offsets 500 to 503, are of partition 0 of a topic whose name" in finding.message
    report = await verify_with_wal((f"superseded-{name}", data), topics=topics)
    assert ([each.damage for each in report.findings if each.kind is FindingKind.WAL], report.is_whole) == (
        [False],
        True,
    )


# ---- the write-ahead log in the bucket ------------------------------------------------------------------------------


async def verify_with_log(*base_offsets):
    store = await store_of(V2)
    async with trio.open_nursery() as nursery:
        wal = S3Wal(store=store, namespace="default", epoch=0)
        await nursery.start(wal.run)
        for base_offset in base_offsets:
            batch = SAME.get(base_offset) or make_batch(base_offset, [b"x"])
            await wal.append(WalEntry(TOPIC_ID, 0, 0, base_offset, batch)).wait()
        nursery.cancel_scope.cancel()
    verifier = verifier_of(store, topics=KNOWN)
    await verifier.read_log(await list_log(store, "default"), START, lambda _: None)
    await verifier.list_bucket()
    await verifier.read_bucket(lambda _: None)
    return verifier.report


async def test_an_s3_wal_that_continues_after_the_segments_is_whole():
    report = await verify_with_log(106, 109, 112, 113)
    assert (report.findings, report.wal_objects, report.wal_entries) == ([], 4, 4)


async def test_a_hole_between_segments_and_the_log_in_the_bucket_is_found():
    (finding,) = (await verify_with_log(113)).findings
    assert (finding.kind, finding.damage) == (FindingKind.WAL_OBJECT, True)
    assert "orders-0 goes on at offset 113, but 112 is the next" in finding.message
