"""The bytes of a WAL object: the write-ahead log in the bucket, of which each object is one PUT.

Sans-IO: buffers in, buffers out; may not import trio. Everything is big-endian.

    object = header | entries, as in a file of the write-ahead log
    header = magic 8 | version u16 | zeros 2 | salt u32 | writer's epoch u32 | entry count u32 | number u64
             | durable number u64 | sequence of the first entry u64 | length of the entries u64 | crc32c u32

Objects of one epoch are numbered from 1 without gaps; entries are too, across the objects of an epoch. `durable number`
is the last object that had been acknowledged when this one was made, so an object behind a gap tells whether the
missing one had been acknowledged.

The version is 2 if entries are of transactions, and else 1, as that of a file.

An object without entries is a fence. It is the last one of an epoch, in place of the object that the broker of that
epoch would have written next, and its writer's epoch is that of the broker that took over.

Where several brokers share the bucket, each start of one writes a stream: its epoch is the incarnation, and it has
record batches only, and in large objects an index of them before. Its oldest objects are deleted when they are
flushed; up to the greatest `durable number` in the stream, or up to its fence, what is missing was deleted.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs
from crc32c import crc32c

from kafscale.buffers import Buffer
from kafscale.errors import DamagedObject
from kafscale.formats.wal_entries import (
    VERSION,
    VERSION_WITH_TRANSACTIONS,
    FileHeader,
    WalEntry,
    WalFile,
    encode,
    scan,
)

MAGIC = b"KAFSWOBJ"

_HEADER = struct.Struct(">8sHxxIIIQQQQ")
HEADER_BYTES = _HEADER.size + 4


@attrs.frozen(order=True)
class WalPosition:
    """A place in the log: everything up to and including the object of this number in this epoch."""

    epoch: int
    number: int


START = WalPosition(-1, 0)  # before everything: epochs begin with 0


@attrs.frozen(kw_only=True)
class ObjectHeader:
    """The header of a WAL object. `epoch` is that of the broker that wrote it."""

    salt: int
    epoch: int
    entry_count: int
    number: int
    durable_number: int
    sequence: int
    body_bytes: int
    has_transactions: bool = False

    @property
    def is_fence(self) -> bool:
        return self.entry_count == 0


@attrs.define(eq=False, repr=False)
class WalObject(WalFile):
    """An object in the bucket, as a file of its entries; `name` is its key."""

    position: WalPosition = attrs.field(kw_only=True)


def wal_object(key: str, epoch: int, header: ObjectHeader) -> WalObject:
    return WalObject(
        key,
        FileHeader(
            header.number,
            header.sequence,
            header.salt,
            created_ms=0,
            started=True,
            has_transactions=header.has_transactions,
        ),
        HEADER_BYTES + header.body_bytes,
        HEADER_BYTES + header.body_bytes,
        sealed=True,
        position=WalPosition(epoch, header.number),
    )


def encode_header(header: ObjectHeader) -> bytes:
    body = _HEADER.pack(
        MAGIC,
        VERSION_WITH_TRANSACTIONS if header.has_transactions else VERSION,
        header.salt,
        header.epoch,
        header.entry_count,
        header.number,
        header.durable_number,
        header.sequence,
        header.body_bytes,
    )
    return body + crc32c(body).to_bytes(4, "big")


def decode_header(key: str, buffer: Buffer) -> ObjectHeader:
    """Decode the header at the start of the buffer. Raises DamagedObject, naming `key`."""
    view = memoryview(buffer)
    body, checksum = view[: _HEADER.size], view[_HEADER.size : HEADER_BYTES]
    if len(checksum) < 4 or crc32c(body) != int.from_bytes(checksum, "big"):
        raise DamagedObject(f"{key}: the header at 0 is damaged")
    magic, version, salt, epoch, entry_count, number, durable_number, sequence, body_bytes = _HEADER.unpack(body)
    if magic != MAGIC:
        raise DamagedObject(f"{key}: not a WAL object")
    if version not in (VERSION, VERSION_WITH_TRANSACTIONS):
        raise DamagedObject(
            f"{key}: WAL object version {version} is not known, only up to {VERSION_WITH_TRANSACTIONS}; a newer "
            "KafScale has written it: start that version, or a newer one"
        )
    return ObjectHeader(
        salt=salt,
        epoch=epoch,
        entry_count=entry_count,
        number=number,
        durable_number=durable_number,
        sequence=sequence,
        body_bytes=body_bytes,
        has_transactions=version == VERSION_WITH_TRANSACTIONS,
    )


def encode_object(header: ObjectHeader, entries: Sequence[WalEntry], *, durable_sequence: int) -> list[Buffer]:
    """Encode the object as buffers; the entries' data is not copied."""
    return [encode_header(header), *encode(entries, durable_sequence=durable_sequence, salt=header.salt)]


def decode_object(key: str, buffer: Buffer) -> tuple[ObjectHeader, Sequence[WalEntry]]:
    """Decode header and entries, whose data are views. Raises DamagedObject, naming key and position."""
    header = decode_header(key, buffer)
    entries: list[WalEntry] = []
    end = HEADER_BYTES
    for entry in scan(memoryview(buffer), HEADER_BYTES, salt=header.salt):
        if entry.sequence != header.sequence + len(entries):
            break
        entries.append(entry)
        end = entry.end
    if len(entries) != header.entry_count or end != HEADER_BYTES + header.body_bytes or end != len(buffer):
        raise DamagedObject(
            f"{key}: entry {header.sequence + len(entries)} at {end} is damaged: the object has {len(buffer)} bytes "
            f"and should have {HEADER_BYTES + header.body_bytes} with {header.entry_count} entries"
        )
    return header, entries
