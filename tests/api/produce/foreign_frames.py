"""A table of codec and form of its frame, right and wrong, around the same three records, with Apache Kafka's answers.

The records have no timestamp, so that a frame is the same bytes at any time. `tests/java/test_foreign_batches.py` holds
the answers of Apache Kafka, `tests/api/produce/test_foreign_frames.py` ours, and `tests/clients/test_foreign_frames.py`
has clients read all that is taken.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs
import cramjam

from kafscale.wire import error_codes
from kafscale.wire.batch_header import HEADER_BYTES, seal_batch
from kafscale.wire.compression import GZIP, LZ4, NAMES, SNAPPY, XERIAL_HEADER, XERIAL_MAGIC, ZSTD, compress
from kafscale.wire.records import Record, build_batch

LZ4_MAGIC: Final = struct.pack("<I", 0x184D2204)
LZ4_LEGACY_MAGIC: Final = struct.pack("<I", 0x184C2102)
SKIPPABLE: Final = struct.pack("<II", 0x184D2A50, 4) + b"skip"
ZSTD_MAGIC: Final = struct.pack("<I", 0xFD2FB528)
END_MARK: Final = bytes(4)

VALUES: Final = (b"first" * 8, b"abcdefgh" * 15_000, b"last")
RECORD_COUNT: Final = len(VALUES)
PLAIN: Final = bytes(build_batch([Record(value=value, timestamp_ms=-1) for value in VALUES])[HEADER_BYTES:])
HALF: Final = 70_000  # in the second record, and behind the first block of 64 KiB

_PRIMES: Final = (2654435761, 2246822519, 3266489917, 668265263, 374761393)


TAKEN: Final = error_codes.NONE
FAILED: Final = error_codes.UNKNOWN_SERVER_ERROR
INVALID: Final = error_codes.INVALID_RECORD


@attrs.frozen
class Foreign:
    """A frame or a batch, Apache Kafka 4.1.1's answer to it, and ours where that differs, with the reason."""

    frame: bytes
    kafka: int = TAKEN
    differing: int | None = None
    reason: str = ""

    @property
    def expected(self) -> int:
        """Our answer."""
        return self.kafka if self.differing is None else self.differing


@attrs.frozen
class ForeignBatch:
    """A frame of a codec, in a batch."""

    name: str
    codec: int
    foreign: Foreign

    @property
    def batch(self) -> bytearray:
        """The batch as a producer sends it."""
        others = (RECORD_COUNT - 1, -1, -1, -1, -1, -1, RECORD_COUNT)
        return seal_batch(self.foreign.frame, 0, -1, self.codec, *others)


def foreign_batches() -> Sequence[ForeignBatch]:
    """The whole table."""
    by_codec = {GZIP: gzip_frames(), SNAPPY: snappy_frames(), LZ4: lz4_frames(), ZSTD: zstd_frames()}
    return [
        ForeignBatch(f"{NAMES[codec]}, {name}", codec, foreign)
        for codec, frames in by_codec.items()
        for name, foreign in frames.items()
    ]


def xxh32(data: bytes) -> int:
    """The checksum of lz4's frame headers, blocks and contents, without a seed."""
    first, second, third, fourth, fifth = _PRIMES
    position, mask = 0, 0xFFFFFFFF
    if len(data) >= 16:
        lanes = [(first + second) & mask, second, 0, -first & mask]
        while position + 16 <= len(data):
            for lane, word in enumerate(struct.unpack_from("<4I", data, position)):
                lanes[lane] = _rotated((lanes[lane] + word * second) & mask, 13) * first & mask
            position += 16
        total = sum(_rotated(lane, shift) for lane, shift in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        total = fifth
    total += len(data)
    while position + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, position)
        total = _rotated((total + word * third) & mask, 17) * fourth & mask
        position += 4
    for byte in data[position:]:
        total = _rotated((total + byte * fifth) & mask, 11) * first & mask
    total = (total ^ ((total & mask) >> 15)) * second & mask
    total = (total ^ (total >> 13)) * third & mask
    return total ^ (total >> 16)


def _rotated(word: int, shift: int) -> int:
    word &= 0xFFFFFFFF
    return (word << shift | word >> (32 - shift)) & 0xFFFFFFFF


# ---- gzip -------------------------------------------------------------------------------------------------------


def gzip_member(data: bytes = PLAIN, *, flags: int = 0, fields: bytes = b"") -> bytes:
    """A member whose header has these flags and optional fields."""
    packer = zlib.compressobj(wbits=-15)
    body = packer.compress(data) + packer.flush()
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(4) + b"\0\xff" + fields
    return head + body + struct.pack("<II", zlib.crc32(data), len(data))


def gzip_frames() -> Mapping[str, Foreign]:
    """All of gzip."""
    whole = gzip_member()
    wrong_crc = bytearray(whole)
    wrong_crc[-8] ^= 1
    head_crc = struct.pack("<H", zlib.crc32(b"\x1f\x8b\x08\x02" + bytes(4) + b"\0\xff") & 0xFFFF)
    small = gzip_member(PLAIN[:HALF])
    return {
        "one member": Foreign(whole),
        "as Python writes it": Foreign(gzip.compress(PLAIN, mtime=0)),
        "two members": Foreign(
            small + gzip_member(PLAIN[HALF:]), TAKEN, INVALID, "librdkafka reads the first member only"
        ),
        "an empty member behind": Foreign(whole + gzip_member(b"")),
        "an empty member in front": Foreign(gzip_member(b"") + whole, TAKEN, INVALID, "librdkafka aborts its process"),
        "a member with a file name": Foreign(gzip_member(flags=8, fields=b"name\0")),
        "a member with a comment": Foreign(gzip_member(flags=16, fields=b"comment\0")),
        "a member with an extra field": Foreign(gzip_member(flags=4, fields=b"\3\0abc")),
        "a member with a checksum of its header": Foreign(gzip_member(flags=2, fields=head_crc)),
        "a member with a wrong checksum of its header": Foreign(gzip_member(flags=2, fields=b"\1\2"), FAILED),
        "a member with a reserved flag": Foreign(gzip_member(flags=0x20), TAKEN, FAILED, "librdkafka refuses it"),
        "stored blocks": Foreign(gzip.compress(PLAIN, 0, mtime=0)),
        "four zero bytes behind": Foreign(whole + bytes(4)),
        "forty zero bytes behind": Foreign(whole + bytes(40)),
        "other bytes behind": Foreign(whole + b"garbage", TAKEN, FAILED, "kafka-python and aiokafka refuse them"),
        "the start of a member behind": Foreign(
            whole + whole[:12], TAKEN, FAILED, "kafka-python and aiokafka refuse it"
        ),
        "a damaged member behind": Foreign(whole + whole[:100] + whole[-8:], INVALID, FAILED, "refused either way"),
        "six bytes cut off": Foreign(whole[:-6], FAILED),
        "half of it": Foreign(whole[: len(whole) // 2], FAILED),
        "the header alone": Foreign(whole[:10], FAILED),
        "no bytes": Foreign(b"", FAILED),
        "a wrong checksum": Foreign(bytes(wrong_crc), FAILED),
        "a wrong size": Foreign(whole[:-1] + b"\xff", FAILED),
        "zlib": Foreign(zlib.compress(PLAIN), FAILED),
        "deflate without a header": Foreign(whole[10:-8], FAILED),
    }


# ---- snappy -----------------------------------------------------------------------------------------------------


def xerial(data: bytes, *, version: int = 1, compatible: int = 1, block_bytes: int = 32 << 10) -> bytes:
    """A stream as snappy-java writes it, with these versions and blocks."""
    parts = [XERIAL_MAGIC, struct.pack(">ii", version, compatible)]
    for start in range(0, len(data), block_bytes):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + block_bytes]))
        parts += [struct.pack(">i", len(block)), block]
    return b"".join(parts)


def snappy_frames() -> Mapping[str, Foreign]:
    """All of snappy."""
    raw, framed = bytes(cramjam.snappy.compress_raw(PLAIN)), xerial(PLAIN)
    return {
        "xerial": Foreign(framed),
        "xerial with one large block": Foreign(xerial(PLAIN, block_bytes=1 << 20)),
        "xerial with blocks of 100 bytes": Foreign(xerial(PLAIN, block_bytes=100)),
        "xerial of version 2 that version 1 can read": Foreign(
            xerial(PLAIN, version=2), TAKEN, INVALID, "aiokafka refuses it"
        ),
        "xerial of version 2": Foreign(xerial(PLAIN, version=2, compatible=2), TAKEN, INVALID, "aiokafka refuses it"),
        "xerial of version 0": Foreign(xerial(PLAIN, version=0, compatible=0), TAKEN, INVALID, "aiokafka refuses it"),
        "two xerial streams": Foreign(
            xerial(PLAIN[:HALF]) + xerial(PLAIN[HALF:]), TAKEN, INVALID, "only Java reads them"
        ),
        "an empty xerial stream behind": Foreign(framed + XERIAL_HEADER, TAKEN, INVALID, "only Java reads it"),
        "an empty xerial block behind": Foreign(framed + struct.pack(">i", 1) + b"\0"),
        "a xerial block of no bytes behind": Foreign(framed + bytes(4), FAILED),
        "raw": Foreign(raw),
        "raw with a byte behind": Foreign(raw + b"\0", FAILED),
        "two raw blocks": Foreign(
            bytes(cramjam.snappy.compress_raw(PLAIN[:HALF])) + bytes(cramjam.snappy.compress_raw(PLAIN[HALF:])), FAILED
        ),
        "three bytes behind": Foreign(framed + bytes(3), TAKEN, FAILED, "only Java reads it"),
        "xerial cut off": Foreign(framed[:-1], FAILED),
        "xerial cut off in a length": Foreign(framed + b"\0\0", TAKEN, FAILED, "only Java reads it"),
        "the xerial header alone": Foreign(XERIAL_HEADER, INVALID),
        "a part of the xerial header": Foreign(XERIAL_HEADER[:10], FAILED),
        "a negative block": Foreign(XERIAL_HEADER + struct.pack(">i", -5) + raw, FAILED),
        "a block that is too long": Foreign(XERIAL_HEADER + struct.pack(">i", len(raw) + 1) + raw, FAILED),
        "raw cut off": Foreign(raw[:-1], FAILED),
        "no bytes": Foreign(b"", FAILED),
        "snappy's own framing": Foreign(bytes(cramjam.snappy.compress(PLAIN)), FAILED),
        "not snappy": Foreign(b"\xff\xff\xff\xff\xff" + PLAIN, FAILED),
    }


# ---- lz4 --------------------------------------------------------------------------------------------------------


def lz4_frame(
    data: bytes = PLAIN,
    *,
    flags: int = 0x60,
    block_code: int = 4,
    descriptor_low: int = 0,
    block_bytes: int | None = None,
    content_size: int | None = None,
    dictionary_id: bytes = b"",
    is_stored: bool = False,
    header_checksum: int | None = None,
    block_checksum: int | None = None,
    content_checksum: int | None = None,
    end: bytes = END_MARK,
) -> bytes:
    """A frame of independent blocks; what is wrong with it is up to the arguments."""
    descriptor = bytes([flags, block_code << 4 | descriptor_low])
    if flags & 8:
        descriptor += struct.pack("<Q", len(data) if content_size is None else content_size)
    descriptor += dictionary_id
    checksum = xxh32(descriptor) >> 8 & 0xFF if header_checksum is None else header_checksum
    parts = [LZ4_MAGIC, descriptor, bytes([checksum])]
    for block in lz4_blocks(data, block_bytes or 1 << 2 * block_code + 8, is_stored):
        parts += [block[0], block[1]]
        if flags & 16:
            parts.append(struct.pack("<I", xxh32(block[1]) if block_checksum is None else block_checksum))
    parts.append(end)
    if flags & 4:
        parts.append(struct.pack("<I", xxh32(data) if content_checksum is None else content_checksum))
    return b"".join(parts)


def lz4_blocks(data: bytes, block_bytes: int, is_stored: bool) -> Iterator[tuple[bytes, bytes]]:
    """The length and the bytes of each block."""
    for start in range(0, len(data), block_bytes):
        part = data[start : start + block_bytes]
        if is_stored:
            yield struct.pack("<I", len(part) | 1 << 31), part
        else:
            packed = bytes(cramjam.lz4.compress_block(part, store_size=False))
            yield struct.pack("<I", len(packed)), packed


def lz4_linked(data: bytes = PLAIN) -> bytes:
    """A frame of blocks that refer to those before them."""
    compressor = cramjam.lz4.Compressor(block_linked=True)
    compressor.compress(data)
    return bytes(compressor.finish())


def marked_as_independent(frame: bytes) -> bytes:
    """The same frame of linked blocks with a header that says otherwise."""
    has_size = bool(frame[4] & 8)
    descriptor = bytes([frame[4] | 0x20]) + frame[5 : 14 if has_size else 6]
    return LZ4_MAGIC + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF]) + frame[5 + len(descriptor) :]


def lz4_frames() -> Mapping[str, Foreign]:
    """All of lz4."""
    whole, checked = lz4_frame(), lz4_frame(flags=0x64)
    legacy = bytes(cramjam.lz4.compress_block(PLAIN, store_size=False))
    return {
        "independent blocks": Foreign(whole),
        "as the broker writes it": Foreign(compress(LZ4, PLAIN)),
        "content size": Foreign(lz4_frame(flags=0x68)),
        "content checksum": Foreign(checked),
        "block checksums": Foreign(lz4_frame(flags=0x70)),
        "all checksums and the size": Foreign(lz4_frame(flags=0x7C)),
        "blocks of 256 KiB": Foreign(lz4_frame(block_code=5)),
        "blocks of 1 MiB": Foreign(lz4_frame(block_code=6)),
        "blocks of 4 MiB": Foreign(lz4_frame(block_code=7)),
        "blocks shorter than they may be": Foreign(lz4_frame(block_bytes=1000)),
        "stored blocks": Foreign(lz4_frame(is_stored=True)),
        "linked blocks": Foreign(lz4_linked(), FAILED),
        "linked blocks that are marked as independent": Foreign(marked_as_independent(lz4_linked()), FAILED),
        "an end mark with the bit of stored blocks": Foreign(
            lz4_frame(end=b"\0\0\0\x80"), TAKEN, FAILED, "liblz4, and so every other client, reads on"
        ),
        "one block that is marked as linked": Foreign(lz4_frame(flags=0x40, block_code=5), FAILED),
        "two frames": Foreign(lz4_frame(PLAIN[:HALF]) + lz4_frame(PLAIN[HALF:]), INVALID),
        "an empty frame behind": Foreign(whole + lz4_frame(b""), TAKEN, INVALID, "librdkafka refuses it"),
        "an empty frame in front": Foreign(lz4_frame(b"") + whole, INVALID),
        "a skippable frame behind": Foreign(whole + SKIPPABLE, TAKEN, INVALID, "librdkafka refuses it"),
        "a skippable frame in front": Foreign(SKIPPABLE + whole, FAILED),
        "a legacy frame": Foreign(LZ4_LEGACY_MAGIC + struct.pack("<I", len(legacy)) + legacy, FAILED),
        "zero bytes behind": Foreign(whole + bytes(8), TAKEN, INVALID, "librdkafka and aiokafka refuse them"),
        "other bytes behind": Foreign(whole + b"garbage", TAKEN, INVALID, "librdkafka and aiokafka refuse them"),
        "no end mark": Foreign(whole[:-4], FAILED),
        "half of it": Foreign(whole[: len(whole) // 2], FAILED),
        "no content checksum, though one is announced": Foreign(checked[:-4], FAILED),
        "a wrong header checksum": Foreign(lz4_frame(header_checksum=xxh32(b"\x60\x40") >> 8 & 0xFF ^ 1), FAILED),
        "a wrong content checksum": Foreign(
            lz4_frame(flags=0x64, content_checksum=1), TAKEN, FAILED, "only Java does not look at it"
        ),
        "a wrong block checksum": Foreign(lz4_frame(flags=0x70, block_checksum=1), FAILED),
        "a content size that is too small": Foreign(
            lz4_frame(flags=0x68, content_size=len(PLAIN) - 1), TAKEN, FAILED, "only Java does not look at it"
        ),
        "a content size that is too large": Foreign(
            lz4_frame(flags=0x68, content_size=len(PLAIN) + 1), TAKEN, FAILED, "only Java does not look at it"
        ),
        "a content size of 2^63": Foreign(
            lz4_frame(flags=0x68, content_size=1 << 63), TAKEN, FAILED, "only Java does not look at it"
        ),
        "a content size of nothing": Foreign(lz4_frame(flags=0x68, content_size=0)),
        "a reserved flag": Foreign(lz4_frame(flags=0x62), FAILED),
        "a dictionary": Foreign(lz4_frame(flags=0x61, dictionary_id=b"\1\2\3\4"), FAILED),
        "a reserved bit of the block size": Foreign(lz4_frame(descriptor_low=1), FAILED),
        "a block size that does not exist": Foreign(lz4_frame(block_code=3, block_bytes=1000), FAILED),
        "version 0": Foreign(lz4_frame(flags=0x20), FAILED),
        "version 2": Foreign(lz4_frame(flags=0xA0), FAILED),
        "a block longer than the header allows": Foreign(lz4_frame(block_bytes=100_000), FAILED),
        "a stored block longer than the header allows": Foreign(lz4_frame(block_bytes=100_000, is_stored=True), FAILED),
        "a block that is no lz4": Foreign(
            lz4_frame(is_stored=True, block_bytes=1000).replace(b"\xe8\3\0\x80", b"\xe8\3\0\0", 1), FAILED
        ),
        "no bytes": Foreign(b"", FAILED),
        "the header alone": Foreign(whole[:7], FAILED),
        "an empty frame": Foreign(lz4_frame(b""), INVALID),
    }


# ---- zstd -------------------------------------------------------------------------------------------------------


def zstd_frame(
    data: bytes = PLAIN,
    *,
    descriptor: int = 0,
    window_log: int = 17,
    size: bytes = b"",
    dictionary_id: bytes = b"",
    checksum: bytes = b"",
) -> bytes:
    """A frame of stored blocks without content size, unless the descriptor says otherwise."""
    parts = [ZSTD_MAGIC, bytes([descriptor])]
    if not descriptor & 0x20:
        parts.append(bytes([window_log - 10 << 3]))
    parts += [dictionary_id, size]
    starts = range(0, len(data), 1 << 16)
    for start in starts:
        part = data[start : start + (1 << 16)]
        parts += [struct.pack("<I", len(part) << 3 | (start == starts[-1]))[:3], part]
    if not data:
        parts.append(b"\1\0\0")
    return b"".join([*parts, checksum])


def zstd_stream(data: bytes = PLAIN) -> bytes:
    """A frame as Java's streaming writer leaves it: the header has no content size."""
    compressor = cramjam.zstd.Compressor()
    compressor.compress(data)
    return bytes(compressor.finish())


def zstd_frames() -> Mapping[str, Foreign]:
    """All of zstd."""
    whole, streamed = bytes(cramjam.zstd.compress(PLAIN)), zstd_stream()
    return {
        "content size": Foreign(whole),
        "no content size": Foreign(streamed),
        "stored blocks": Foreign(zstd_frame()),
        "two frames": Foreign(zstd_stream(PLAIN[:HALF]) + zstd_stream(PLAIN[HALF:])),
        "two frames with content size": Foreign(
            bytes(cramjam.zstd.compress(PLAIN[:HALF])) + bytes(cramjam.zstd.compress(PLAIN[HALF:]))
        ),
        "an empty frame behind": Foreign(whole + zstd_frame(b"")),
        "an empty frame in front": Foreign(zstd_frame(b"") + whole),
        "a skippable frame behind": Foreign(whole + SKIPPABLE),
        "a skippable frame in front": Foreign(SKIPPABLE + whole),
        "zero bytes behind": Foreign(whole + bytes(8), FAILED),
        "one byte behind": Foreign(whole + b"\0", FAILED),
        "other bytes behind": Foreign(whole + b"garbage", FAILED),
        "a wrong content checksum": Foreign(zstd_frame(descriptor=4, checksum=b"\1\2\3\4"), FAILED),
        "a window of 8 MiB": Foreign(zstd_frame(window_log=23)),
        "a window of 128 MiB": Foreign(zstd_frame(window_log=27)),
        "a window of 256 MiB": Foreign(zstd_frame(window_log=28), FAILED),
        "a window of 2 GiB": Foreign(zstd_frame(window_log=31), FAILED),
        "a window of 2 TiB": Foreign(zstd_frame(window_log=41), FAILED),
        "a content size that is too small": Foreign(
            zstd_frame(descriptor=0x80, size=struct.pack("<I", len(PLAIN) - 1)), FAILED
        ),
        "a content size that is too large": Foreign(
            zstd_frame(descriptor=0x80, size=struct.pack("<I", len(PLAIN) + 1)), FAILED
        ),
        "a content size of 2^40": Foreign(zstd_frame(descriptor=0xC0, size=struct.pack("<Q", 1 << 40)), FAILED),
        "a dictionary": Foreign(zstd_frame(descriptor=1, dictionary_id=b"\x42"), FAILED),
        "a dictionary with the number 0": Foreign(zstd_frame(descriptor=1, dictionary_id=b"\0")),
        "a reserved bit": Foreign(zstd_frame(descriptor=8), FAILED),
        "an unused bit": Foreign(zstd_frame(descriptor=0x10)),
        "cut off": Foreign(whole[:-1], FAILED),
        "half of it": Foreign(whole[: len(whole) // 2], FAILED),
        "the magic alone": Foreign(whole[:4], FAILED),
        "no bytes": Foreign(b"", INVALID, FAILED, "refused either way"),
        "an empty frame": Foreign(zstd_frame(b""), INVALID),
        "not zstd": Foreign(PLAIN, FAILED),
    }
