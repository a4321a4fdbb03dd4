"""Compress and decompress record batches, within a bound.

A stated decompressed size is only a hint: the first buffer is at most 64 times the received bytes, grows only when it
is full, and never past the limit.

| codec | taken from producers | also read, in older logs | written |
|---|---|---|---|
| gzip | one member, zero bytes behind it | several members | one member |
| snappy | raw, or one xerial stream of version 1 | several streams, other versions | xerial |
| lz4 | one frame of independent blocks | linked blocks, several frames | a frame of independent blocks |
| zstd | frames, a window of at most 128 MiB | | a frame |

Producers' batches are taken only in forms that every client can read (`strict`): Java's consumers stop at linked blocks
and at a second lz4 frame, librdkafka stops at a second member, frame or stream, and aborts its process at an empty gzip
member in front. `tests/api/produce/test_foreign_frames.py` has Kafka's answers.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from typing import Any, Final

from kafscale.buffers import Buffer
from kafscale.errors import InvalidRecord, KafkaError, UnreadableBatch
from kafscale.wire import error_codes

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

NAMES: Final = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
"""As Kafka's `compression.type` spells them."""

FIRST_BUFFER_BYTES: Final = 64 * 1024
FIRST_BUFFER_RATIO: Final = 4  # where no size is stated; text compresses 3 to 5 times
TRUSTED_RATIO: Final = 64
GROWTH: Final = 4
MAPPED_MIN_BYTES: Final = 1 << 20
"""A larger buffer is mapped memory, of which only what is written exists. To fill 128 MiB with zeros first, with the
interpreter's lock, takes 180 ms."""

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, lowest version that can read it
XERIAL_BLOCK_BYTES: Final = 32 * 1024  # as Java's SnappyOutputStream
SNAPPY_MAX_RATIO: Final = 32  # its densest element makes 64 bytes of 3
GZIP_MAX_RATIO: Final = 1032  # 258 bytes in two bits
BLOCK_MIN_BYTES: Final = 128
"""What a block of snappy or lz4 counts at least, of the bytes that a batch may unpack to: each costs a microsecond."""

_GZIP_FORMAT: Final = 31  # zlib's name for it, with the largest window
_GZIP_PIECE_BYTES: Final = 256 << 10  # in and out, so that what zlib gives back of its input stays small
_LZ4_MAGIC: Final = 0x184D2204
_LZ4_HEADER_BYTES: Final = 7  # without content size and dictionary
_LZ4_HAS_DICTIONARY: Final = 0x01
_LZ4_HAS_CONTENT_CHECKSUM: Final = 0x04
_LZ4_HAS_CONTENT_SIZE: Final = 0x08
_LZ4_HAS_BLOCK_CHECKSUMS: Final = 0x10
_LZ4_HAS_INDEPENDENT_BLOCKS: Final = 0x20
_LZ4_BLOCK_LENGTH: Final = 0x7FFFFFFF  # without the bit that says that it is stored as it is
# Rust's text for a write that did not fit: cramjam passes it on and has no error type for it
_BUFFER_FULL: Final = "failed to write whole buffer"


def decompress(codec: int, data: Buffer, max_bytes: int, *, strict: bool = False) -> bytearray | memoryview:
    """Decompress to at most `max_bytes`.

    `strict` refuses forms that some client can't read. Raises UnreadableBatch for damaged data, InvalidRecord for a
    refused form, and KafkaError: MESSAGE_TOO_LARGE (Java's producer then splits the batch) or
    UNSUPPORTED_COMPRESSION_TYPE.
    """
    view = memoryview(data)
    if codec == SNAPPY:
        return _decompress_snappy(view, max_bytes, strict)
    if codec == GZIP:
        return _decompress_gzip(view, max_bytes, strict)
    if codec not in (LZ4, ZSTD):
        raise KafkaError(error_codes.UNSUPPORTED_COMPRESSION_TYPE, f"no compression codec has the number {codec}")
    if strict and codec == LZ4:
        _check_lz4_frame(view, max_bytes)
    return _decompress_stream(codec, view, max_bytes)


def compress(codec: int, data: Buffer) -> bytes:
    """Compress like a Java client, at the codec's default level. Raises KafkaError (UNSUPPORTED_COMPRESSION_TYPE)."""
    import cramjam

    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec == SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec == LZ4:
        compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))  # it takes nothing else
        return bytes(compressor.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data))
    raise KafkaError(error_codes.UNSUPPORTED_COMPRESSION_TYPE, f"no compression codec has the number {codec}")


def _decompress_stream(codec: int, data: memoryview, max_bytes: int) -> bytearray | memoryview:
    import cramjam

    module: Any = {LZ4: cramjam.lz4, ZSTD: cramjam.zstd}[codec]
    capacity = min(_first_buffer_bytes(codec, data), max_bytes)
    while True:
        out = _buffer(capacity)
        try:
            written = module.decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if _BUFFER_FULL not in str(error):
                raise UnreadableBatch(f"{NAMES[codec]}: {error}") from error
            if capacity == max_bytes:
                raise _too_large(max_bytes) from error
        else:
            if isinstance(out, memoryview):
                return out[:written]
            del out[written:]
            return out
        del out  # before the next one is made
        capacity = min(capacity * GROWTH, max_bytes)


def _buffer(size_bytes: int) -> bytearray | memoryview:
    return bytearray(size_bytes) if size_bytes < MAPPED_MIN_BYTES else memoryview(mmap.mmap(-1, size_bytes))


def _first_buffer_bytes(codec: int, data: memoryview) -> int:
    stated = stated_bytes(codec, data)
    if stated is None:
        return max(FIRST_BUFFER_BYTES, FIRST_BUFFER_RATIO * len(data))
    return max(FIRST_BUFFER_BYTES, min(stated, TRUSTED_RATIO * len(data)))


def stated_bytes(codec: int, data: memoryview) -> int | None:
    """Return the decompressed size that gzip's trailer or a frame header states; None without one, or if impossible."""
    stated: int | None = None
    if codec == GZIP and len(data) >= 18:
        (stated,) = struct.unpack_from("<I", data, len(data) - 4)
        if stated > GZIP_MAX_RATIO * len(data):  # damaged, or something stands behind the trailer
            return None
    elif codec == LZ4 and len(data) >= 14 and data[4] & _LZ4_HAS_CONTENT_SIZE:
        (stated,) = struct.unpack_from("<Q", data, 6)
    elif codec == ZSTD and len(data) >= 14:
        stated = _zstd_content_size(data)
    return stated


def _zstd_content_size(data: memoryview) -> int | None:
    descriptor = data[4]
    single_segment = bool(descriptor & 0x20)
    size: int
    position = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    match descriptor >> 6:
        case 0:
            return data[position] if single_segment else None
        case 1:
            (size,) = struct.unpack_from("<H", data, position)
            return size + 256
        case 2:
            (size,) = struct.unpack_from("<I", data, position)
        case _:
            if len(data) < position + 8:
                return None
            (size,) = struct.unpack_from("<Q", data, position)
    return size


def _decompress_gzip(data: memoryview, max_bytes: int, strict: bool) -> bytearray:
    """Decompress all members; zero bytes may follow the last one, as in Java and Python."""
    out = bytearray()
    position = _inflate_member(data, 0, out, max_bytes)
    first_bytes = len(out)
    while position < len(data):
        if not data[position]:
            if bytes(data[position:]).strip(b"\0"):
                raise UnreadableBatch(f"gzip: data that is not a member at byte {position} of {len(data)}")
            break
        position = _inflate_member(data, position, out, max_bytes)
    if strict and first_bytes < len(out):
        raise InvalidRecord("gzip: several members, of which librdkafka reads the first only")
    return out


def _inflate_member(data: memoryview, position: int, out: bytearray, max_bytes: int) -> int:
    member = zlib.decompressobj(_GZIP_FORMAT)
    try:
        while not member.eof:
            piece: Buffer = member.unconsumed_tail
            if not piece:
                piece = data[position : position + _GZIP_PIECE_BYTES]
                position += len(piece)
            unpacked = member.decompress(piece, min(_GZIP_PIECE_BYTES, max_bytes - len(out) + 1))
            if not piece and not unpacked and not member.eof:
                raise UnreadableBatch(f"gzip: the member is cut off after {len(data)} bytes")
            out += unpacked
            if len(out) > max_bytes:
                raise _too_large(max_bytes)
    except zlib.error as error:
        raise UnreadableBatch(f"gzip: {error}") from error
    return position - len(member.unused_data)


def _check_lz4_frame(data: memoryview, max_bytes: int) -> None:
    """Refuse frames that Java's clients can't read (Kafka's Lz4BlockInputStream), and bytes behind the frame."""
    if len(data) < _LZ4_HEADER_BYTES or struct.unpack_from("<I", data)[0] != _LZ4_MAGIC:
        raise UnreadableBatch("lz4: no frame")
    flags = data[4]
    if not flags & _LZ4_HAS_INDEPENDENT_BLOCKS:
        raise UnreadableBatch("lz4: linked blocks, which Java's clients can't read; make the blocks independent")
    if flags & _LZ4_HAS_DICTIONARY:
        raise UnreadableBatch("lz4: a dictionary, which no client has")
    end = _lz4_end(data, flags, max_bytes)
    if end > len(data):
        raise UnreadableBatch(f"lz4: the frame is cut off after {len(data)} bytes")
    if end < len(data):
        raise InvalidRecord(f"lz4: {len(data) - end} bytes behind the frame, which librdkafka refuses")


def _lz4_end(data: memoryview, flags: int, max_bytes: int) -> int:
    """Return the end of the frame, by the lengths of its blocks."""
    position = _LZ4_HEADER_BYTES + (8 if flags & _LZ4_HAS_CONTENT_SIZE else 0)
    checksum_bytes = 4 if flags & _LZ4_HAS_BLOCK_CHECKSUMS else 0
    length_at = struct.Struct("<I").unpack_from
    try:
        for _ in range(max_bytes // BLOCK_MIN_BYTES + 1):
            length = length_at(data, position)[0] & _LZ4_BLOCK_LENGTH
            position += 4
            if not length:
                return position + (4 if flags & _LZ4_HAS_CONTENT_CHECKSUM else 0)
            position += length + checksum_bytes
    except struct.error as error:
        raise UnreadableBatch(f"lz4: the frame is cut off: {error}") from error
    raise _too_large(max_bytes)


def _decompress_snappy(data: memoryview, max_bytes: int, strict: bool) -> bytearray | memoryview:
    """Decompress after adding up the stated sizes of the blocks, if these can hold as much."""
    import cramjam

    try:
        blocks = _xerial_blocks(data, max_bytes, strict) if _is_xerial(data, 0) else [data]
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        for block, size in zip(blocks, sizes, strict=True):
            if size > SNAPPY_MAX_RATIO * len(block):
                raise UnreadableBatch(f"snappy: a block of {len(block)} bytes can't hold {size}")
        if sum(sizes) > max_bytes:
            raise _too_large(max_bytes)
        out = _buffer(sum(sizes))
        with memoryview(out) as view:
            position = 0
            for block, size in zip(blocks, sizes, strict=True):
                cramjam.snappy.decompress_raw_into(block, view[position : position + size])
                position += size
    except (cramjam.DecompressionError, struct.error) as error:
        raise UnreadableBatch(f"snappy: {error}") from error
    return out


def _is_xerial(data: memoryview, position: int) -> bool:
    return bytes(data[position : position + len(XERIAL_MAGIC)]) == XERIAL_MAGIC


def _xerial_blocks(data: memoryview, max_bytes: int, strict: bool) -> list[memoryview]:
    """Return the raw blocks of xerial's framing, each of which follows its length; streams may follow one another."""
    if strict and data[: len(XERIAL_HEADER)] != XERIAL_HEADER and len(data) >= len(XERIAL_HEADER):
        raise InvalidRecord("snappy: a xerial stream that is not of version 1, which aiokafka does not read")
    blocks: list[memoryview] = []
    position, blocks_max_count = 0, max_bytes // BLOCK_MIN_BYTES + 1
    while position < len(data):
        if _is_xerial(data, position):
            if position and strict:
                raise InvalidRecord("snappy: several xerial streams, of which Java alone reads the second")
            position += len(XERIAL_HEADER)
            if position > len(data):
                raise UnreadableBatch("snappy: the xerial header is cut off")
            continue
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 < length <= len(data) - position:
            raise UnreadableBatch(f"snappy: a block of {length} bytes does not fit")
        if len(blocks) == blocks_max_count:
            raise _too_large(max_bytes)
        blocks.append(data[position : position + length])
        position += length
    return blocks


def _compress_snappy(data: memoryview) -> bytes:
    import cramjam

    parts = [XERIAL_HEADER]
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + XERIAL_BLOCK_BYTES]))
        parts += [struct.pack(">i", len(block)), block]
    return b"".join(parts)


def _too_large(max_bytes: int) -> KafkaError:
    return KafkaError(error_codes.MESSAGE_TOO_LARGE, f"a batch decompresses to more than {max_bytes} bytes")
