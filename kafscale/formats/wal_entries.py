"""The bytes of the write-ahead log: file header, entries, and what proves that an entry had been acknowledged.

Sans-IO: buffers in, buffers out; may not import trio or os. Everything is big-endian.

    file   = header | entries | zeros, or what the file held before, up to the allocated size
    header = magic 8 | version u16 | started u16 | salt u32 | number u64 | sequence u64 | created ms i64
             | zeros 20 | crc32c u32
    entry  = magic u32 | length u32 | crc32c u32 | sequence u64 | durable sequence u64 | topic id 16
             | partition i32 | leader epoch i32 | base offset i64 | kind u8 | zeros 3 | data (`length` bytes)

The header is synced when the file is made, before anything is written behind it, and once more, with `started` and the
number of the first entry, in the same write as the first entries. A file that is not `started` holds nothing that
was ever acknowledged; a file without a valid header and with anything but zeros is damaged, as the header is in one
sector, which a disk writes whole or not at all.

The version is 2 in a file that may have batches or markers of transactions, and else 1: who does not know transactions
would take what was aborted, or is open, for committed, and flush it as such. So it reads no version 2.

A released file is reused under a new header: overwriting allocated blocks needs no transaction of the file system. Its
old entries do not match the new salt, and have lower numbers.

An entry's CRC starts from the file's random salt and covers all that follows it. The salt keeps record data that looks
like an entry (somebody stores WAL files in a topic) from being taken for one.

Entries are numbered without gaps across files, and written in groups, each group only after the one before it was
synced. `durable sequence` is the last entry that was durable when this one was written, so a valid entry behind a bad
one tells whether the bad one had been acknowledged (damage) or was lost in the middle of a write (a torn tail).

In a file on disk an entry of kind 3 tells the name of a topic (UTF-8, of partition -1), before the first record batch
of that topic in the file. So each file can be read without the metadata. Earlier versions pass over it, and wrote none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from crc32c import crc32c

from kafscale.buffers import Buffer
from kafscale.errors import DamagedObject

VERSION = 1
VERSION_WITH_TRANSACTIONS = 2
FILE_MAGIC = b"KAFSWAL\n"
ENTRY_MAGIC = 0x574C4F47  # "WLOG"
ENTRY_MAGIC_BYTES = ENTRY_MAGIC.to_bytes(4, "big")

RECORD_BATCH = 0  # the kinds of entries; 0 holds one record batch in Kafka's format 2, in its final bytes
METADATA = 1  # a transaction of the metadata store, of no topic (zeros) and partition -1
INDEX = 2  # where the entries of each partition are (`kafscale.formats.wal_index`), likewise of none
TOPIC_NAME = 3  # the name of a topic, of partition -1

_FILE_HEADER = struct.Struct(">8sHHIQQq20x")
_PREFIX = struct.Struct(">III")
_REST = struct.Struct(">QQ16siiqB3x")
_ENTRY_HEADER = struct.Struct(">IIIQQ16siiqB3x")
FILE_HEADER_BYTES = _FILE_HEADER.size + 4
ENTRY_HEADER_BYTES = _ENTRY_HEADER.size


@attrs.frozen
class FileHeader:
    """The header of a WAL file.

    `sequence` is the number of its first entry once `started`; before that, the next number when the file was made, so
    that numbers go on even when every entry has been deleted.
    """

    number: int
    sequence: int
    salt: int
    created_ms: int
    started: bool = False
    has_transactions: bool = False

    @property
    def version(self) -> int:
        return VERSION_WITH_TRANSACTIONS if self.has_transactions else VERSION


@attrs.define(eq=False, repr=False)
class WalFile:
    """One file of the log. The next entry goes to `end`; `pending_count` entries are not in the bucket yet.

    A `sealed` file gets no more entries; it is deleted when nothing is pending in it or in any older file.
    """

    name: str
    header: FileHeader
    size_bytes: int
    end: int = FILE_HEADER_BYTES
    pending_count: int = 0
    entry_count: int = 0  # written since the start
    sealed: bool = False


@attrs.define(eq=False, repr=False)
class WalEntry:
    """One record batch on its way into the log. `owner` is the caller's own and never stored.

    `data` must not change until the entry is durable; then `file` and `position` (of the data) are known. `sequence` is
    assigned when the entry is written.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    base_offset: int
    data: Buffer
    owner: Any = None
    kind: int = RECORD_BATCH
    is_transactional: bool = False
    sequence: int = attrs.field(default=0, init=False)
    durable_sequence: int = attrs.field(default=0, init=False)
    file: WalFile | None = attrs.field(default=None, init=False)
    position: int = attrs.field(default=0, init=False)

    @property
    def end(self) -> int:
        return self.position + len(self.data)


def topic_name_entry(topic_id: bytes, name: str) -> WalEntry:
    return WalEntry(topic_id, -1, -1, -1, name.encode(), kind=TOPIC_NAME)


def encode_file_header(header: FileHeader) -> bytes:
    body = _FILE_HEADER.pack(
        FILE_MAGIC, header.version, header.started, header.salt, header.number, header.sequence, header.created_ms
    )
    return body + crc32c(body).to_bytes(4, "big")


def decode_file_header(name: str, buffer: Buffer) -> FileHeader | None:
    """Decode the header at the start of the buffer; None if it is invalid. Raises DamagedObject for a newer version."""
    body = memoryview(buffer)[: _FILE_HEADER.size]
    checksum = memoryview(buffer)[_FILE_HEADER.size : FILE_HEADER_BYTES]
    if len(checksum) < 4 or crc32c(body) != int.from_bytes(checksum, "big"):
        return None
    magic, version, started, salt, number, sequence, created_ms = _FILE_HEADER.unpack(body)
    if magic != FILE_MAGIC:
        return None
    if version not in (VERSION, VERSION_WITH_TRANSACTIONS):
        raise DamagedObject(
            f"{name}: WAL format version {version} is not known, only up to {VERSION_WITH_TRANSACTIONS}; a newer "
            "KafScale has written it: start that version, or a newer one"
        )
    return FileHeader(number, sequence, salt, created_ms, bool(started), version == VERSION_WITH_TRANSACTIONS)


def encode(entries: Sequence[WalEntry], *, durable_sequence: int, salt: int) -> list[Buffer]:
    """Encode the entries as buffers; the data is not copied."""
    buffers: list[Buffer] = []
    for entry in entries:
        data = entry.data
        rest = _REST.pack(
            entry.sequence,
            durable_sequence,
            entry.topic_id,
            entry.partition,
            entry.leader_epoch,
            entry.base_offset,
            entry.kind,
        )
        checksum = crc32c(data, crc32c(rest, salt))
        buffers.append(_PREFIX.pack(ENTRY_MAGIC, len(data), checksum) + rest)
        buffers.append(data)
    return buffers


def decode_entry(buffer: memoryview, position: int, *, salt: int) -> WalEntry | None:
    """Decode the entry at `position`, its data a view; None if it is invalid."""
    start = position + ENTRY_HEADER_BYTES
    if position < 0 or start > len(buffer):
        return None
    magic, length, checksum, sequence, durable_sequence, topic_id, partition, leader_epoch, base_offset, kind = (
        _ENTRY_HEADER.unpack_from(buffer, position)
    )
    if magic != ENTRY_MAGIC or start + length > len(buffer):
        return None
    data = buffer[start : start + length]
    if crc32c(data, crc32c(buffer[position + _PREFIX.size : start], salt)) != checksum:
        return None
    entry = WalEntry(topic_id, partition, leader_epoch, base_offset, data, None, kind)
    entry.sequence, entry.durable_sequence, entry.position = sequence, durable_sequence, start
    return entry


def run_start(places: Sequence[tuple[int, int]]) -> int:
    """Return where the header of a run's first entry begins. `places` are positions and lengths of the data."""
    return places[0][0] - ENTRY_HEADER_BYTES


def run_bytes(places: Sequence[tuple[int, int]]) -> int:
    return sum(places[-1]) - run_start(places)


def decode_run(buffer: memoryview, places: Sequence[tuple[int, int]], *, name: str, salt: int) -> bytes:
    """Return the data of a run's entries, one behind the other. Raises DamagedObject, naming `name`."""
    start = run_start(places)
    found: list[Buffer] = []
    for position, length_bytes in places:
        header = position - ENTRY_HEADER_BYTES
        entry = decode_entry(buffer, header - start, salt=salt)
        if entry is None or len(entry.data) != length_bytes:
            raise DamagedObject(f"{name}: the entry at {header} is damaged")
        found.append(entry.data)
    return b"".join(found)


def scan(buffer: memoryview, position: int, *, salt: int) -> Iterator[WalEntry]:
    """Yield the valid entries from `position` on, up to the first invalid place."""
    entry = decode_entry(buffer, position, salt=salt)
    while entry is not None:
        yield entry
        entry = decode_entry(buffer, entry.end, salt=salt)


def find_proof(buffer: bytes, position: int, *, sequence: int, salt: int) -> int | None:
    """Return the position of a valid entry that was written after entry `sequence` was durable, or None."""
    view = memoryview(buffer)
    candidate = buffer.find(ENTRY_MAGIC_BYTES, position)
    while candidate >= 0:
        # The CRC of what only looks like an entry may be over megabytes, so the numbers are looked at first.
        if candidate + ENTRY_HEADER_BYTES <= len(buffer):
            found_sequence, durable_sequence = struct.unpack_from(">QQ", buffer, candidate + _PREFIX.size)
            if sequence <= durable_sequence < found_sequence and decode_entry(view, candidate, salt=salt):
                return candidate
        candidate = buffer.find(ENTRY_MAGIC_BYTES, candidate + 1)
    return None


def is_torn(buffer: bytes, position: int, *, sequence: int) -> bool:
    """Tell whether the invalid entry `sequence` was being written at `position`."""
    if position + ENTRY_HEADER_BYTES > len(buffer):
        return False
    magic, _, _, found_sequence = struct.unpack_from(">IIIQ", buffer, position)
    return bool(magic == ENTRY_MAGIC and found_sequence == sequence)


def is_zero(buffer: bytes, position: int) -> bool:
    return buffer.count(0, position) == max(0, len(buffer) - position)
