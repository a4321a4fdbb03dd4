"""The four codecs of record batches, decompressing within a bound.

A decompressed size that a peer states is a hint and no more: the first buffer is at most 64 times what was received, it
grows only after having been filled, and never past the limit. So neither a lie nor a bomb allocates what it asks for.

| codec | what comes in | what goes out |
|---|---|---|
| gzip | one or several members | one member |
| snappy | raw, or in the xerial framing of Java clients | xerial |
| lz4 | frames, with or without content size and linked blocks | a frame of independent blocks: Java reads no others |
| zstd | frames, with or without content size | a frame |

cramjam is imported with the first compressed batch. Its work is done without the interpreter's lock.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Any, Final

from kafscale.buffers import Buffer
from kafscale.errors import CorruptBatch, KafkaError
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

_LZ4_HAS_CONTENT_SIZE: Final = 0x08
# Rust's text for a write that did not fit: cramjam passes it on and has no error type for it
_BUFFER_FULL: Final = "failed to write whole buffer"


def decompress(codec: int, data: Buffer, max_bytes: int) -> bytearray | memoryview:
    """Decompress, to at most `max_bytes`. What is large is a view of memory that goes with it.

    Raises:
        CorruptBatch: the data is damaged or is not of this codec.
        KafkaError: MESSAGE_TOO_LARGE if there is more than `max_bytes` of it (Java's producer then splits the batch);
            UNSUPPORTED_COMPRESSION_TYPE if the codec is unknown.
    """
    view = memoryview(data)
    if codec == SNAPPY:
        return _decompress_snappy(view, max_bytes)
    if codec not in (GZIP, LZ4, ZSTD):
        raise KafkaError(error_codes.UNSUPPORTED_COMPRESSION_TYPE, f"no compression codec has the number {codec}")
    return _decompress_stream(codec, view, max_bytes)


def compress(codec: int, data: Buffer) -> bytes:
    """Compress, as a Java client would, at the codec's default level.

    Raises:
        KafkaError: UNSUPPORTED_COMPRESSION_TYPE if the codec is unknown.
    """
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

    module: Any = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}[codec]
    capacity = min(_first_buffer_bytes(codec, data), max_bytes)
    while True:
        out = _buffer(capacity)
        try:
            written = module.decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if _BUFFER_FULL not in str(error):
                raise CorruptBatch(f"{NAMES[codec]}: {error}") from error
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
    """Return what is stated, if that can be believed, or a guess."""
    stated = stated_bytes(codec, data)
    if stated is None:
        return max(FIRST_BUFFER_BYTES, FIRST_BUFFER_RATIO * len(data))
    return max(FIRST_BUFFER_BYTES, min(stated, TRUSTED_RATIO * len(data)))


def stated_bytes(codec: int, data: memoryview) -> int | None:
    """The decompressed size that the data states: in gzip's trailer (modulo 2^32), or in the frame's header.

    Nothing but a hint: it may be a lie, or that of the first of several members or frames. None if there is none.
    """
    stated: int | None = None
    if codec == GZIP and len(data) >= 18:
        (stated,) = struct.unpack_from("<I", data, len(data) - 4)
    elif codec == LZ4 and len(data) >= 14 and data[4] & _LZ4_HAS_CONTENT_SIZE:
        (stated,) = struct.unpack_from("<Q", data, 6)
    elif codec == ZSTD and len(data) >= 14:
        stated = _zstd_content_size(data)
    return stated


def _zstd_content_size(data: memoryview) -> int | None:
    """The content size in a zstd frame header (RFC 8878, 3.1.1.1)."""
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


def _decompress_snappy(data: memoryview, max_bytes: int) -> bytearray | memoryview:
    """Add up the sizes that the blocks state, if such blocks can hold as much; then decompress."""
    import cramjam

    try:
        blocks = list(_xerial_blocks(data)) if _is_xerial(data, 0) else [data]
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        for block, size in zip(blocks, sizes, strict=True):
            if size > SNAPPY_MAX_RATIO * len(block):
                raise CorruptBatch(f"snappy: a block of {len(block)} bytes can't hold {size}")
        if sum(sizes) > max_bytes:
            raise _too_large(max_bytes)
        out = _buffer(sum(sizes))
        with memoryview(out) as view:
            position = 0
            for block, size in zip(blocks, sizes, strict=True):
                cramjam.snappy.decompress_raw_into(block, view[position : position + size])
                position += size
    except (cramjam.DecompressionError, struct.error) as error:
        raise CorruptBatch(f"snappy: {error}") from error
    return out


def _is_xerial(data: memoryview, position: int) -> bool:
    return bytes(data[position : position + len(XERIAL_MAGIC)]) == XERIAL_MAGIC


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    """The raw blocks of xerial's framing: each has its length in front; streams may follow one another."""
    position = 0
    while position < len(data):
        if _is_xerial(data, position):
            position += len(XERIAL_HEADER)
            if position > len(data):
                raise CorruptBatch("snappy: the xerial header is cut off")
            continue
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 < length <= len(data) - position:
            raise CorruptBatch(f"snappy: a block of {length} bytes does not fit")
        yield data[position : position + length]
        position += length


def _compress_snappy(data: memoryview) -> bytes:
    import cramjam

    parts = [XERIAL_HEADER]
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + XERIAL_BLOCK_BYTES]))
        parts += [struct.pack(">i", len(block)), block]
    return b"".join(parts)


def _too_large(max_bytes: int) -> KafkaError:
    return KafkaError(error_codes.MESSAGE_TOO_LARGE, f"a batch decompresses to more than {max_bytes} bytes")
