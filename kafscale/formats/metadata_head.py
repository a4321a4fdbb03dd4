"""The head of the metadata that several brokers share: one object, and each commit replaces it. Sans-IO; big-endian.

    head  = magic 8 | version u16 | zeros 2 | epoch u32 | kept until u64 | count u32 | crc32c u32 | `count` entries
    entry = nonce 16 | length u32 | a transaction of `metadata_changes`

The checksum covers the bytes before and behind it. Entries are numbered by *revisions*, from the one behind
`kept until` on; earlier ones are in a checkpoint, whose position is the head's epoch and a revision. A commit
writes the whole head by a conditional write on the ETag of the one that it was made from (If-Match): so each is made by
somebody who has applied everything before it, and one that comes late has no effect. The nonce is the writer's, by
which it knows its own entry when the reply was lost.

The epoch is that of the claim by which a broker alone became several, and never changes.

In version 2 one more record of the same form follows the last entry: the claim by which one broker takes the bucket
for itself again (`kafscale.cluster.membership.start.unsharing`). Such a head is the last of its
epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import islice

import attrs
from crc32c import crc32c

from kafscale.buffers import Buffer
from kafscale.errors import DamagedObject, NewerVersion
from kafscale.formats.segment import body_crc
from kafscale.store.paths import system_key

MAGIC = b"KAFSHEAD"
VERSION = 1
ENDED_VERSION = 2
NONCE_BYTES = 16

_HEADER = struct.Struct(">8sHxxIQI")
_ENTRY = struct.Struct(">16sI")


@attrs.frozen
class HeadEntry:
    nonce: bytes
    data: bytes

    @property
    def size_bytes(self) -> int:
        return _ENTRY.size + len(self.data)


@attrs.frozen
class Head:
    """The content of the head object. `entries` are the revisions behind `kept_until`, in order.

    `claim` is the encoded claim of the broker that has the bucket to itself again; then nothing follows.
    """

    epoch: int
    kept_until: int = 0
    entries: tuple[HeadEntry, ...] = ()
    claim: bytes | None = None

    @property
    def revision(self) -> int:
        return self.kept_until + len(self.entries)

    @property
    def size_bytes(self) -> int:
        return _HEADER.size + 4 + sum(entry.size_bytes for entry in _written(self))

    def behind(self, revision: int) -> Sequence[HeadEntry] | None:
        """Return the entries behind a revision; None if a checkpoint has the first of them."""
        if revision < self.kept_until:
            return None
        return list(islice(self.entries, revision - self.kept_until, None))

    def with_entries(self, entries: Sequence[HeadEntry], kept_until: int) -> Head:
        """Return the head with more entries, without those that checkpoints have up to `kept_until`."""
        kept_until = min(max(kept_until, self.kept_until), self.revision)
        left = self.entries[kept_until - self.kept_until :]
        return Head(self.epoch, kept_until, (*left, *entries))


def head_key(namespace: str) -> str:
    return system_key("head", namespace=namespace)


def encode_head(head: Head) -> Sequence[bytes]:
    entries = _written(head)
    version = VERSION if head.claim is None else ENDED_VERSION
    header = _HEADER.pack(MAGIC, version, head.epoch, head.kept_until, len(entries))
    body: list[bytes] = []
    for entry in entries:
        body += (_ENTRY.pack(entry.nonce, len(entry.data)), entry.data)
    checksum = body_crc([header, *body])
    return [header + checksum.to_bytes(4, "big"), *body]


def _written(head: Head) -> Sequence[HeadEntry]:
    return head.entries if head.claim is None else (*head.entries, HeadEntry(bytes(NONCE_BYTES), head.claim))


def decode_head(key: str, data: Buffer) -> Head:
    """Decode a head. Raises DamagedObject, naming the key."""
    view = memoryview(data)
    start = _HEADER.size + 4
    if len(view) < start or bytes(view[:8]) != MAGIC:
        raise DamagedObject(f"{key}: not a head of metadata")
    _, version, epoch, kept_until, count = _HEADER.unpack_from(view)
    if version not in (VERSION, ENDED_VERSION):
        known = f"{VERSION} and {ENDED_VERSION}"
        raise NewerVersion(f"{key}: version {version} is not known, only {known}: start a later version of KafScale")
    checksum = crc32c(view[start:], crc32c(view[: _HEADER.size]))
    if checksum != int.from_bytes(view[_HEADER.size : start], "big"):
        raise DamagedObject(f"{key}: the checksum at {_HEADER.size} is not that of its {len(view)} bytes")
    entries: list[HeadEntry] = []
    position = start
    for _ in range(count):
        if position + _ENTRY.size > len(view):
            raise DamagedObject(f"{key}: an entry at {position} goes beyond the end")
        nonce, length = _ENTRY.unpack_from(view, position)
        position += _ENTRY.size
        entries.append(HeadEntry(nonce, bytes(view[position : position + length])))
        position += length
    if position != len(view):
        raise DamagedObject(f"{key}: its entries end at {position}, and it has {len(view)} bytes")
    if version == VERSION:
        return Head(epoch, kept_until, tuple(entries))
    if not entries:
        raise DamagedObject(f"{key}: says that nothing follows it, and has no claim")
    return Head(epoch, kept_until, tuple(entries[:-1]), entries[-1].data)
