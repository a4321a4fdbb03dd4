"""Checkpoints of the metadata in the bucket, with which a broker whose disk is empty begins. Sans-IO.

    checkpoint = magic 8 | version u16 | kind u8 | zeros 1 | epoch u32 | number u64 | base u64 | length u64 | crc32c u32
                 | `length` bytes: transactions of `metadata_changes`, one behind the other, as one zlib stream

`epoch` and `number` say up to where in the log in the bucket the checkpoint holds; what comes behind is replayed. In
`wal` mode nothing does: what was changed after the last checkpoint is lost with the disk.

Each is an object of its own and is written once, under a key of the broker's epoch and a number. A full one (kind 0)
puts every entry. One of changes (kind 1) makes, of any full one of its epoch that has the number `base` or a later one,
and is older than itself, the metadata of its own moment: it holds all that has changed since that base, so it needs no
other one of its kind. There are two full ones before the first of changes, and of changes two are kept, so any one
object may be damaged. The log is kept behind the older of the last two.

The keys of the entries are those of the metadata store, `topics/orders` among them, and the values JSON. Spark's
readers look into it, too.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Generator, Sequence

import attrs
from crc32c import crc32c

from kafscale.buffers import Buffer, size_of
from kafscale.errors import DamagedObject, NewerVersion
from kafscale.formats.metadata_changes import Transaction, decode_transactions
from kafscale.formats.segment import body_crc
from kafscale.formats.wal_objects import WalPosition
from kafscale.store.paths import NumberedKey

VERSION = 2
MAGIC = b"KAFSCKPT"
LEVEL = 1  # of zlib: 200,000 offsets are 35 MB, and 3.7 MB after 0.11 s; level 6 takes 0.26 s for 3.2 MB

_BEGINNING = struct.Struct(">8sH")
_HEADER = struct.Struct(">8sHBxIQQQ")
_FULL, _CHANGES = range(2)


@attrs.frozen
class Checkpoint:
    """A position in the metadata's log, and the transaction that creates the metadata as of that position.

    With a `base` it holds changes since the full checkpoint of that number.
    """

    position: WalPosition
    transaction: Transaction
    base: int | None = None


@attrs.define(eq=False, repr=False)
class CheckpointBody:
    """The body behind the header, built in pieces: deletions of prefixes first, and each key once."""

    size_bytes: int = attrs.field(default=0, init=False)  # before it is compressed
    _parts: list[bytes] = attrs.field(factory=list, init=False)
    _compressor: zlib._Compress = attrs.field(factory=lambda: zlib.compressobj(LEVEL), init=False)

    def add(self, encoded: bytes) -> None:
        self.size_bytes += len(encoded)
        self._parts.append(self._compressor.compress(encoded))

    def finish(self) -> Sequence[bytes]:
        return [*filter(None, self._parts), self._compressor.flush()]


def encode_header(position: WalPosition, body: Sequence[Buffer], base: int | None) -> bytes:
    kind = _FULL if base is None else _CHANGES
    length = size_of(body)
    header = _HEADER.pack(MAGIC, VERSION, kind, position.epoch, position.number, base or 0, length)
    checksum = body_crc([header, *body])
    return header + checksum.to_bytes(4, "big")


def decode_checkpoint(key: str, data: Buffer) -> Checkpoint:
    """Decode a checkpoint. Raises DamagedObject, naming the key."""
    view = memoryview(data)
    magic, version = _BEGINNING.unpack_from(view) if len(view) >= _BEGINNING.size else (b"", 0)
    if magic != MAGIC:
        raise DamagedObject(f"{key}: not a checkpoint of metadata")
    if version != VERSION:
        needed = "a later version of KafScale" if version > VERSION else "the version of KafScale that wrote it"
        raise NewerVersion(f"{key}: checkpoint version {version} is not known, only {VERSION}: start {needed}")
    body_start = _HEADER.size + 4
    header, checksum, body = view[: _HEADER.size], view[_HEADER.size : body_start], view[body_start:]
    if len(checksum) < 4 or crc32c(body, crc32c(header)) != int.from_bytes(checksum, "big"):
        raise DamagedObject(f"{key}: the checksum at {_HEADER.size} is not that of its {len(view)} bytes")
    _, _, kind, epoch, number, base, length = _HEADER.unpack(header)
    if length != len(body) or kind not in (_FULL, _CHANGES):
        raise DamagedObject(f"{key}: not a checkpoint of metadata")
    return Checkpoint(WalPosition(epoch, number), _decode_body(key, body), None if kind == _FULL else base)


def _decode_body(key: str, body: memoryview) -> Transaction:
    try:
        content = zlib.decompress(body)
    except zlib.error as exc:
        raise DamagedObject(f"{key}: can't be decompressed: {exc}") from exc
    puts: dict[str, bytes] = {}
    deletes: list[str] = []
    prefixes: list[str] = []
    for transaction in decode_transactions(memoryview(content)):
        puts.update(transaction.puts)
        deletes += transaction.deletes
        prefixes += transaction.delete_prefixes
    return Transaction(puts=puts, deletes=deletes, delete_prefixes=prefixes)


# ---- which one to begin with ---------------------------------------------------------------------------------------


@attrs.frozen
class FoundCheckpoint:
    """The newest full checkpoint that intact objects give, or None, and the damaged ones."""

    newest: Checkpoint | None
    damage: Sequence[DamagedObject]


def newest_checkpoint(keys: Sequence[NumberedKey]) -> Generator[NumberedKey, Buffer, FoundCheckpoint]:
    """Find the newest checkpoint among keys, oldest first. Yields needed keys, and expects their content."""
    damage: list[DamagedObject] = []
    changes: Checkpoint | None = None
    changes_key: NumberedKey | None = None
    for key in reversed(keys):
        data = yield key
        try:
            read = decode_checkpoint(key.key, data)
        except DamagedObject as exc:
            damage.append(exc)
            continue
        if read.base is not None:
            if changes is None:
                changes, changes_key = read, key
            continue
        if changes is None or changes_key is None:
            return FoundCheckpoint(read, damage)
        if has_base(changes_key, changes, {key}):
            return FoundCheckpoint(with_changes(read, changes), damage)
        damage.append(
            DamagedObject(f"{changes_key.key}: there is no full checkpoint {changes.base} or later before it")
        )
        return FoundCheckpoint(read, damage)
    if changes is not None and changes_key is not None:
        damage.append(DamagedObject(f"{changes_key.key}: there is no full checkpoint that it is of"))
    return FoundCheckpoint(None, damage)


def has_base(key: NumberedKey, changes: Checkpoint, full: Collection[NumberedKey]) -> bool:
    assert changes.base is not None
    return any(checkpoint.epoch == key.epoch and changes.base <= checkpoint.number < key.number for checkpoint in full)


def with_changes(full: Checkpoint, changes: Checkpoint) -> Checkpoint:
    puts = dict(full.transaction.puts)
    for prefix in changes.transaction.delete_prefixes:
        for key in [key for key in puts if key.startswith(prefix)]:
            del puts[key]
    for key in changes.transaction.deletes:
        puts.pop(key, None)
    puts.update(changes.transaction.puts)
    return Checkpoint(changes.position, Transaction(puts=puts))
