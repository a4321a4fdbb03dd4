from __future__ import annotations

import gzip
import os
import struct
import tracemalloc
from random import Random

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.errors import CorruptBatch, KafkaError
from kafscale.wire import error_codes
from kafscale.wire.compression import (
    GZIP,
    LZ4,
    NAMES,
    SNAPPY,
    XERIAL_HEADER,
    ZSTD,
    compress,
    decompress,
)

CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
MIB = 1 << 20

codecs = pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)


def zstd_stream(data: bytes) -> bytes:
    """As Java's streaming writer leaves it: the header has no content size."""
    compressor = cramjam.zstd.Compressor()
    compressor.compress(data)
    return bytes(compressor.finish())


def lz4_frame(data: bytes, *, linked: bool) -> bytes:
    compressor = cramjam.lz4.Compressor(block_linked=linked)
    compressor.compress(data)
    return bytes(compressor.finish())


TEXT = b"".join(b"%d: a line of a log, much like the one before it\n" % i for i in range(20_000))

FOREIGN = {
    "several gzip members": (GZIP, gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:])),
    "a gzip member that is empty after one that is not": (GZIP, gzip.compress(TEXT) + gzip.compress(b"")),
    "raw snappy": (SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
    "two xerial streams": (SNAPPY, compress(SNAPPY, TEXT[:70_000]) + compress(SNAPPY, TEXT[70_000:])),
    "lz4 with linked blocks": (LZ4, lz4_frame(TEXT, linked=True)),
    "lz4 with independent blocks": (LZ4, lz4_frame(TEXT, linked=False)),
    "zstd without content size": (ZSTD, zstd_stream(TEXT)),
    "two zstd frames": (ZSTD, zstd_stream(TEXT[:1000]) + bytes(cramjam.zstd.compress(TEXT[1000:]))),
}


@codecs
@given(data=st.binary(max_size=2000) | st.integers(0, 300_000).map(lambda size: TEXT[:size]))
def test_round_trip(codec: int, data: bytes) -> None:
    packed = compress(codec, data)
    assert decompress(codec, memoryview(packed), len(data)) == data


@codecs
@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(codec: int, buffer: type) -> None:
    assert decompress(codec, buffer(compress(codec, buffer(TEXT))), len(TEXT)) == TEXT


@codecs
def test_incompressible_data(codec: int) -> None:
    data = os.urandom(200_000)
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("case", FOREIGN)
def test_data_compressed_by_other_writers_is_decompressed(case: str) -> None:
    codec, packed = FOREIGN[case]
    assert decompress(codec, packed, len(TEXT)) == TEXT


def test_lz4_blocks_are_independent_as_java_demands() -> None:
    assert compress(LZ4, TEXT)[4] & 0x20


def test_snappy_is_framed_as_java_does() -> None:
    assert compress(SNAPPY, TEXT).startswith(XERIAL_HEADER)


@codecs
@pytest.mark.parametrize("data", [bytes(16 * MIB), TEXT], ids=["zeros", "text"])
def test_a_bomb_is_refused_within_the_limit(codec: int, data: bytes) -> None:
    packed = compress(codec, data)
    limit = len(data) - 1 if data is TEXT else MIB
    tracemalloc.start()
    with pytest.raises(KafkaError) as caught:
        decompress(codec, packed, limit)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.code == error_codes.MESSAGE_TOO_LARGE
    assert peak < limit + MIB


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (GZIP, gzip.compress(b"abc")[:-4] + b"\xff\xff\xff\x7f"),
        (SNAPPY, b"\xff\xff\xff\xff\x07" + bytes(20)),
        (SNAPPY, XERIAL_HEADER + struct.pack(">i", 25) + b"\xff\xff\xff\xff\x07" + bytes(20)),
        (LZ4, struct.pack("<IBBQ", 0x184D2204, 0x68, 0x40, 1 << 40) + bytes(20)),
        (ZSTD, struct.pack("<IBQ", 0xFD2FB528, 0xE0, 1 << 40) + bytes(20)),
    ],
    ids=["gzip", "snappy", "xerial", "lz4", "zstd"],
)
def test_a_stated_size_is_not_believed(codec: int, packed: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(CorruptBatch):
        decompress(codec, packed, 1 << 30)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB


@codecs
@pytest.mark.parametrize("cut", [0, 1, 3, 4, 5, 9, 13, 17, -1, -5])
def test_cut_off_data_is_corrupt(codec: int, cut: int) -> None:
    packed = compress(codec, TEXT[:5000])
    with pytest.raises(CorruptBatch):
        decompress(codec, packed[:cut], MIB)


@codecs
@settings(max_examples=300)
@given(seed=st.integers(0, 1 << 32), damage_count=st.integers(0, 12))
def test_damage_gives_bytes_or_a_kafka_error(codec: int, seed: int, damage_count: int) -> None:
    rng = Random(seed)
    packed = bytearray(compress(codec, TEXT[:3000]))
    for _ in range(damage_count):
        position = rng.randrange(rng.choice((16, len(packed))))  # half of it where a frame says what comes
        packed[position] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    try:
        decompress(codec, packed, 100_000)
    except KafkaError:
        return


@pytest.mark.parametrize("codec", [0, 5, 7])
def test_unknown_codecs(codec: int) -> None:
    for work in (lambda: decompress(codec, b"", 10), lambda: compress(codec, b"")):
        with pytest.raises(KafkaError) as caught:
            work()
        assert caught.value.code == error_codes.UNSUPPORTED_COMPRESSION_TYPE
