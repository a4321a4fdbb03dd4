"""Checkpoints of the metadata in the bucket, with which a broker whose disk is empty begins. Sans-IO.

    checkpoint = magic 8 | version u16 | zeros 2 | epoch u32 | number u64 | length u64 | crc32c u32
                 | one transaction that puts every entry (`length` bytes)

`epoch` and `number` say up to where in the log in the bucket the checkpoint holds; what comes behind is replayed. In
`wal` mode nothing does: what was changed after the last checkpoint is lost with the disk.

Each is an object of its own and is written once, under a key of the broker's epoch and a number. The newest intact one
wins. Two are kept, and the log behind the older one, so that a damaged one can be done without. The keys of the entries
are those of the metadata store, `topics/orders` among them, and the values JSON. Spark's readers look into it, too.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs
from crc32c import crc32c

from kafscale.errors import DamagedObject
from kafscale.formats.metadata_changes import Transaction, decode_transaction
from kafscale.formats.wal_objects import WalPosition
from kafscale.store.base import Buffer

VERSION = 1
MAGIC = b"KAFSCKPT"

_HEADER = struct.Struct(">8sHxxIQQ")
HEADER_BYTES = _HEADER.size + 4


@attrs.frozen
class Checkpoint:
    """What one holds: the position in the log, and the transaction that makes the metadata of then."""

    position: WalPosition
    transaction: Transaction


def encode_header(position: WalPosition, body: Sequence[Buffer]) -> bytes:
    """What comes before the transaction."""
    header = _HEADER.pack(MAGIC, VERSION, position.epoch, position.number, sum(map(len, body)))
    checksum = crc32c(header)
    for part in body:
        checksum = crc32c(part, checksum)
    return header + checksum.to_bytes(4, "big")


def decode_checkpoint(key: str, data: Buffer) -> Checkpoint:
    """Raises DamagedObject, naming the key."""
    view = memoryview(data)
    header, checksum, body = view[: _HEADER.size], view[_HEADER.size : HEADER_BYTES], view[HEADER_BYTES:]
    if len(checksum) < 4 or crc32c(body, crc32c(header)) != int.from_bytes(checksum, "big"):
        raise DamagedObject(f"{key}: the checksum at {_HEADER.size} is not that of its {len(view)} bytes")
    magic, version, epoch, number, length = _HEADER.unpack(header)
    if magic != MAGIC or length != len(body):
        raise DamagedObject(f"{key}: is no checkpoint")
    if version != VERSION:
        raise DamagedObject(f"{key}: checkpoint version {version} is not known, only {VERSION}")
    return Checkpoint(WalPosition(epoch, number), decode_transaction(body))
