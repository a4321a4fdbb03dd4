"""`kafscale inspect`: what is whole is shown, and every damaged bit is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.cli.inspection import MetadataRow, inspect
from kafscale.cli.main import run
from kafscale.cluster.membership.start.claim import Claim, claim_key
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.errors import DamagedObject
from kafscale.formats import segment, wal_entries
from kafscale.formats.metadata_changes import encode_transaction
from kafscale.formats.metadata_head import Head, HeadEntry, encode_head, head_key
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction
from kafscale.formats.wal_objects import ObjectHeader, WalPosition, encode_object
from kafscale.log.bucket.manifest_keeper import encode_manifests
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import NumberedKey, SegmentKey
from kafscale.testing.disk import MemoryDisk
from kafscale.wire.batch_header import parse_header
from kafscale.wire.compression import ZSTD
from kafscale.wire.records import ProducerStamp, Record, build_batch
from tests.devtools.fakes.memory_log import memory_log
from tests.devtools.fakes.segment_objects import make_batches, version_1_key, version_1_objects
from tests.devtools.fakes.transactions import abort, commit, send
from tests.formats.metadata_checkpoints import encode_checkpoint

TOPIC_ID = bytes(range(16))
KEY = SegmentKey(topic="t", topic_id=TOPIC_ID, partition=3, base_offset=100)


def batch(base_offset: int, count: int, codec: int = 0) -> bytes:
    records = [Record(value=b"v" * 50, timestamp_ms=1_000 + number) for number in range(count)]
    return bytes(build_batch(records, base_offset=base_offset, codec=codec, producer=ProducerStamp(7, 0, 0)))


def objects() -> tuple[bytes, bytes]:
    """A `.kfs` of two batches, one of them compressed, and its `.index`."""
    parts = [batch(100, 3), batch(103, 2, ZSTD)]
    spans = [parse_header(memoryview(part)) for part in parts]
    identity = segment.Identity(
        topic_id=TOPIC_ID,
        partition=3,
        base_offset=100,
        generation=0,
        leader_epoch=1,
        created_ms=1_700_000_000_000,
        batch_count=2,
        body_bytes=sum(map(len, parts)),
        max_timestamp_ms=1_002,
        body_crc=segment.body_crc(parts),
    )
    footer = segment.build_footer(identity, spans, producers=[], epochs=[segment.EpochStart(1, 100)])
    index = segment.encode_footer(footer)
    return b"".join([segment.encode_header(footer), *parts, index]), index


KFS, INDEX = objects()


def wal_file(*, started: bool = True) -> bytes:
    header = wal_entries.FileHeader(number=1, sequence=5, salt=99, created_ms=1_700_000_000_000, started=started)
    written = wal_entries.encode_file_header(header)
    for sequence, base_offset in ((5, 0), (6, 1), (7, 2)):
        entry = wal_entries.WalEntry(TOPIC_ID, 3, 1, base_offset, batch(base_offset, 1))
        entry.sequence = sequence
        written += b"".join(wal_entries.encode([entry], durable_sequence=sequence - 1, salt=99))
    return written + bytes(100)


WAL = wal_file()
ENTRY_BYTES = (len(WAL) - 100 - wal_entries.FILE_HEADER_BYTES) // 3


def flipped(data: bytes, position: int, bit: int = 0) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


def facts(data: bytes, name: str = "x") -> dict[str, object]:
    return {fact.name: fact.value for fact in inspect(data, name).facts}


def test_a_whole_segment_and_its_index_are_shown_alike() -> None:
    found = inspect(KFS, KEY.key)
    assert (found.kind, found.damage) == ("segment", [])
    assert [(row.base_offset, row.records, row.codec) for row in found.rows] == [(100, 3, "none"), (103, 2, "zstd")]
    shown = facts(KFS)
    assert (shown["base offset"], shown["last offset"], shown["records"]) == (100, 104, 5)
    assert (shown["index rows"], shown["rows with an earliest time"]) == (2, 0)
    assert shown.pop("format version") == 2
    assert facts(INDEX) == shown
    assert inspect(INDEX, KEY.of_kind("index").key).damage == []


@given(st.integers(0, len(KFS) - 1), st.integers(0, 7))
def test_every_flipped_bit_of_a_segment_is_found(position: int, bit: int) -> None:
    try:
        assert inspect(flipped(KFS, position, bit), KEY.key).damage
    except DamagedObject:
        assert position < 4


@given(st.integers(0, len(INDEX) - 1), st.integers(0, 7))
def test_every_flipped_bit_of_an_index_is_found(position: int, bit: int) -> None:
    try:
        assert inspect(flipped(INDEX, position, bit), "x.index").damage
    except DamagedObject:
        assert position >= len(INDEX) - 4


@given(st.integers(0, len(KFS) - 1))
def test_a_segment_that_is_cut_off_is_never_whole(size: int) -> None:
    try:
        damage = inspect(KFS[:size], KEY.key).damage
        assert damage
        assert KEY.key not in damage[0], "the name is told above"
    except DamagedObject:
        assert size < segment.HEADER.size


def test_a_segment_under_another_key_is_damage() -> None:
    other = SegmentKey(topic="t", topic_id=TOPIC_ID, partition=4, base_offset=100)
    assert "the identity in the footer" in inspect(KFS, other.key).damage[0]
    assert "the identity in the footer" in inspect(KFS, f"/data/bucket/{other.key}").damage[0]


def test_an_unknown_version_is_the_only_reported_damage() -> None:
    assert inspect(KFS[:5] + b"\4" + KFS[6:], "x").damage == ["format version 4 is not known, only 1 to 3"]


VERSION_1 = version_1_objects(version_1_key("t", 3, 100), make_batches(100, 4), interval=6)


def test_version_1_is_shown() -> None:
    found = inspect(VERSION_1.kfs, VERSION_1.key.key)
    assert found.damage == []
    assert [row.base_offset for row in found.rows] == [100, 103, 106, 109]
    shown = facts(VERSION_1.kfs)
    assert (shown["format version"], shown["last offset"], shown["records"]) == (1, 111, 12)
    assert (facts(VERSION_1.index)["index rows"], inspect(VERSION_1.index, "x").damage) == (2, [])


@given(st.integers(0, len(VERSION_1.kfs) - 1), st.integers(0, 7))
def test_every_flipped_bit_of_version_1_is_found(position: int, bit: int) -> None:
    """All but the time at which it was created, which nothing covers."""
    if 20 <= position < 28:
        return
    try:
        damage = inspect(flipped(VERSION_1.kfs, position, bit), VERSION_1.key.key).damage
        assert damage
        assert VERSION_1.key.key not in damage[0]
    except DamagedObject:
        assert position < 4


def test_a_wal_file_is_shown_by_entry() -> None:
    found = inspect(WAL, "wal-1.log")
    assert (found.kind, found.damage) == ("WAL file", [])
    assert [(row.base_offset, row.partition) for row in found.rows] == [(0, 3), (1, 3), (2, 3)]
    shown = facts(WAL)
    assert (shown["entries"], shown["tail"], shown["bytes in use"]) == (3, "clean", len(WAL) - 100)


@pytest.mark.parametrize("entry", [0, 1])
def test_damage_to_an_acknowledged_entry_is_not_a_torn_tail(entry: int) -> None:
    position = wal_entries.FILE_HEADER_BYTES + entry * ENTRY_BYTES + ENTRY_BYTES - 1
    assert inspect(flipped(WAL, position), "wal").damage == [f"entry {5 + entry} was acknowledged and is damaged"]


def test_a_torn_tail_is_not_damage() -> None:
    torn = flipped(WAL, wal_entries.FILE_HEADER_BYTES + 3 * ENTRY_BYTES - 1)
    assert inspect(torn, "wal").damage == []
    assert str(facts(torn)["tail"]).startswith("torn")


def test_a_damaged_wal_header_is_damage() -> None:
    assert inspect(flipped(WAL, 12), "wal").damage == ["the file's header is damaged"]


WAL_KEY = NumberedKey(kind="wal", epoch=3, number=4)


def wal_object(*, metadata: bytes = encode_transaction(Transaction(puts={"topics/t": b"{}"}))) -> bytes:
    """Two record batches and a change of metadata between them."""
    entries = [
        wal_entries.WalEntry(TOPIC_ID, 3, 1, 0, batch(0, 2)),
        wal_entries.WalEntry(bytes(16), -1, 0, 0, metadata, kind=wal_entries.METADATA),
        wal_entries.WalEntry(TOPIC_ID, 3, 1, 2, batch(2, 1, ZSTD)),
    ]
    for sequence, entry in enumerate(entries, start=5):
        entry.sequence = sequence
    header = ObjectHeader(
        salt=9,
        epoch=3,
        entry_count=3,
        number=4,
        durable_number=2,
        sequence=5,
        body_bytes=sum(len(entry.data) + wal_entries.ENTRY_HEADER_BYTES for entry in entries),
    )
    return b"".join(encode_object(header, entries, durable_sequence=4))


WAL_OBJECT = wal_object()


def test_a_wal_object_is_shown_by_entry() -> None:
    found = inspect(WAL_OBJECT, WAL_KEY.key)
    assert (found.kind, found.damage) == ("WAL object", [])
    assert [(row.base_offset, row.codec, row.partition) for row in found.rows] == [(0, "none", 3), (2, "zstd", 3)]
    shown = facts(WAL_OBJECT, WAL_KEY.key)
    assert (shown["epoch"], shown["number"], shown["entries"], shown["changes of metadata"]) == (3, 4, 3, 1)
    assert shown["is a fence"] == "no"


def test_a_wal_object_under_another_key_and_a_change_that_is_none_are_damage() -> None:
    other = NumberedKey(kind="wal", epoch=3, number=5)
    assert "says that it is object 4 of epoch 3" in inspect(WAL_OBJECT, f"/data/bucket/{other.key}").damage[0]
    assert "the change of metadata at byte" in inspect(wal_object(metadata=b"\1?"), WAL_KEY.key).damage[0]


@given(st.integers(0, len(WAL_OBJECT) - 1), st.integers(0, 7))
def test_every_flipped_bit_of_a_wal_object_is_found(position: int, bit: int) -> None:
    try:
        assert inspect(flipped(WAL_OBJECT, position, bit), WAL_KEY.key).damage
    except DamagedObject:
        assert position < 8


def test_an_incremental_checkpoint_shows_its_base_and_its_deletes() -> None:
    changes = Transaction(puts={"topics/a": b"{}"}, deletes=["topics/b", "topics/c"], delete_prefixes=["groups/"])
    shown = facts(b"".join(encode_checkpoint(WalPosition(3, 4), [changes], base=7)))
    assert (shown["changes since checkpoint number"], shown["entries"]) == (7, 1)
    assert (shown["deleted"], shown["deleted prefixes"]) == (2, 1)


def test_a_checkpoint_is_shown_by_entry() -> None:
    puts = {"topics/a": b"{}", "topics/b": b"{}", "groups/g": b"[]"}
    data = b"".join(encode_checkpoint(WalPosition(3, 4), [Transaction(puts=puts)]))
    found = inspect(data, "x.checkpoint")
    assert (found.kind, found.damage) == ("checkpoint", [])
    shown = facts(data)
    assert (shown["log epoch"], shown["log number"], shown["entries"], shown["entries of topics"]) == (3, 4, 3, 2)
    assert found.rows[0] == MetadataRow(key="groups/g", value="[]")
    for position in range(8, len(data)):
        assert inspect(flipped(data, position), "x").damage


async def test_a_checkpoint_of_the_manifests_is_shown() -> None:
    data = b"".join(await encode_manifests([]))
    assert inspect(data, "x.manifests").kind == "checkpoint of the manifests"
    shown = facts(data)
    assert (shown["partitions"], shown["segments"], shown["bytes"]) == (0, 0, len(data))
    for position in range(8, len(data)):
        assert inspect(flipped(data, position), "x").damage


def test_the_head_of_shared_metadata_is_shown() -> None:
    entry = HeadEntry(bytes(16), encode_transaction(Transaction(puts={"topics/a": b"{}"})))
    data = b"".join(encode_head(Head(7, 41, (entry,))))
    found = inspect(data, head_key("default"))
    assert (found.kind, found.damage) == ("head of the metadata", [])
    assert [(row.key, row.value) for row in found.rows] == [("topics/a", "{}")]  # type: ignore[union-attr]
    assert facts(data, head_key("default"))["kept until revision"] == 41
    (damage,) = inspect(data[:-1], head_key("default")).damage
    assert "checksum" in damage


def test_a_claim_is_shown() -> None:
    data = encode(Claim(epoch=3, broker_id=1, directory_id="d", acknowledges_locally=True, nonce="n"))
    found = inspect(data, claim_key("default"))
    assert (found.kind, found.damage) == ("claim", [])
    shown = facts(data, claim_key("default"))
    assert (shown["epoch"], shown["acknowledges locally"]) == (3, "yes")
    (damage,) = inspect(b"{}", claim_key("default")).damage
    assert claim_key("default") not in damage


def test_files_are_printed_and_damage_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "segment.kfs"
    path.write_bytes(KFS)
    assert run(["inspect", str(path), "--batches"]) == 0
    text = capsys.readouterr().out
    assert "whole: every checksum is correct; batches: 2" in text
    assert "zstd" in text
    path.write_bytes(flipped(KFS, 50))
    assert run(["inspect", str(path), "--json"]) == 1
    written = capsys.readouterr()
    assert json.loads(written.out)["whole"] is False
    assert written.err.startswith(f"kafscale: {path}: the batch at byte 32: ")
    assert written.err.count("\n") == 1


def test_a_key_is_read_from_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / KEY.key
    path.parent.mkdir(parents=True)
    path.write_bytes(KFS)
    assert run(["inspect", KEY.key, "--store", f"file:{tmp_path}", "--json", "--batches"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kind"], shown["whole"], len(shown["rows"])) == ("segment", True, 2)


def test_an_unreadable_file_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    path = tmp_path / "another-users.kfs"
    path.write_bytes(KFS)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert run(["inspect", str(path)]) == 1
    assert capsys.readouterr().err == f"kafscale: {path} can't be read: Permission denied\n"


@pytest.mark.parametrize("store", ["file:none", "memory:"])
def test_a_path_that_is_neither_file_nor_key_gives_one_line(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "no/such.kfs", "--store", store]) == 1
    assert capsys.readouterr().err == f"kafscale: no/such.kfs: neither a file nor a key in {store}\n"


def test_another_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert run(["inspect", str(path)]) == 1
    assert "is not an object of KafScale" in capsys.readouterr().err


async def test_the_transactions_of_a_segment_are_shown(autojump_clock, tmp_path, capsys):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), flush_interval_seconds=1e9) as log:
        partition = log.partition()
        await send(partition, b"a", producer_id=1)
        await send(partition, b"b", producer_id=2)
        await abort(partition, producer_id=1)
        await commit(partition, producer_id=2)
        await log.append(partition, b"plain")
        await send(partition, b"open", producer_id=3)
        await log.log.flusher.flush_all()
        key = partition.manifest.segments[0].key
    data = bytes((await store.get(key.key)).data)
    found = inspect(data, key.key)
    assert found.damage == []
    assert found.aborted == (AbortedTransaction(1, 0, 2, 1),)
    assert found.open == (OpenTransaction(3, 0, 5),)
    assert [row.transaction for row in found.rows] == ["data", "data", "abort", "commit", "", "data"]
    index = inspect((await store.get(key.of_kind("index").key)).data, key.of_kind("index").key)
    assert (index.aborted, index.open) == (found.aborted, found.open)
    path = tmp_path / "segment.kfs"
    path.write_bytes(data)
    assert run(["inspect", str(path), "--transactions", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["aborted"] == [{"producer_id": 1, "first_offset": 0, "marker_offset": 2, "stable_offset": 1}]
    assert [each["first_offset"] for each in document["open"]] == [5]
    assert run(["inspect", str(path), "--transactions"]) == 0
    assert "marker" in capsys.readouterr().out.lower()
    path.write_bytes(KFS)
    assert run(["inspect", str(path), "--transactions"]) == 0
    assert "aborted: none\n\nopen: none" in capsys.readouterr().out
