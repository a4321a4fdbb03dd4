"""The decoder alone: one core, batches that are in memory already, all columns but the headers."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from statistics import median

import attrs

from bench.spark.data import BATCH_BYTES
from kafscale.config.units import MIB
from kafscale.spark.bucket.decode import COLUMN_TYPES, Wanted, decode
from kafscale.spark.bucket.reading import GET_BYTES
from kafscale.wire import compression
from kafscale.wire.batch_header import set_base_offset
from kafscale.wire.records import Record, build_batch

CODECS = {
    "none": compression.NONE,
    "gzip": compression.GZIP,
    "snappy": compression.SNAPPY,
    "lz4": compression.LZ4,
    "zstd": compression.ZSTD,
}
VALUE_BYTES = (100, 1024)
BATCH_SIZES = (BATCH_BYTES, 960 << 10)
TEMPLATES_COUNT = 8
WORDS_COUNT = 256
ROUNDS = 7
WANTED = Wanted(
    topic="bench",
    partition=0,
    start_offset=0,
    end_offset=1 << 62,
    columns=[name for name in COLUMN_TYPES if name != "headers"],
)


@attrs.frozen(kw_only=True)
class Decoded:
    """The result for one codec and size: records and MiB of values that a second of CPU decodes; medians."""

    codec: str
    value_bytes: int
    batch_bytes: int
    records_per_second: float
    mib_per_second: float


def measure_decoder() -> Iterator[Decoded]:
    """Measure each codec with batches of a producer's default size, and large ones uncompressed."""
    for value_bytes in VALUE_BYTES:
        for name in CODECS:
            yield _measure(name, value_bytes, BATCH_SIZES[0])
        yield _measure("none", value_bytes, BATCH_SIZES[1])


def _measure(codec: str, value_bytes: int, batch_bytes: int) -> Decoded:
    data, count = _batches(CODECS[codec], value_bytes, batch_bytes)
    seconds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        rows = sum(part.num_rows for part in decode(data, WANTED))
        seconds.append(time.process_time() - began)
        assert rows == count
    return Decoded(
        codec=codec,
        value_bytes=value_bytes,
        batch_bytes=batch_bytes,
        records_per_second=count / median(seconds),
        mib_per_second=count * value_bytes / MIB / median(seconds),
    )


def _batches(codec: int, value_bytes: int, batch_bytes: int) -> tuple[bytes, int]:
    """Make as many batches as one GET brings of uncompressed ones; values are of random words, which codecs make half
    as long.
    """
    rng = random.Random(1)
    words = [os.urandom(6).hex().encode() for _ in range(WORDS_COUNT)]
    batch_count = max(1, batch_bytes // value_bytes)
    templates = [
        build_batch([_record(rng, words, value_bytes, number) for number in range(batch_count)], codec=codec)
        for _ in range(TEMPLATES_COUNT)
    ]
    data, count = bytearray(), 0
    while count * value_bytes < GET_BYTES:
        batch = bytearray(templates[rng.randrange(TEMPLATES_COUNT)])
        set_base_offset(memoryview(batch), count, 0)
        data += batch
        count += batch_count
    return bytes(data), count


def _record(rng: random.Random, words: list[bytes], value_bytes: int, number: int) -> Record:
    text = b" ".join(rng.choices(words, k=value_bytes // len(words[0]) + 1))
    return Record(key=b"key %06d" % number, value=text[:value_bytes], timestamp_ms=1_700_000_000_000 + number)
