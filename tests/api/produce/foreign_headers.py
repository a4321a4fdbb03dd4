"""A table of batches as foreign producers and copiers send them, with Apache Kafka's answers.

Headers, records and trailing bytes that are unusual; `foreign_frames` has the compressed ones.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from kafscale.wire import compression, error_codes
from kafscale.wire.batch_header import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    encode_batch,
    parse_header,
)
from kafscale.wire.primitives import varint
from kafscale.wire.records import Record, build_batch
from tests.api.produce.foreign_frames import FAILED, INVALID, TAKEN, Foreign

NOW_MS: Final = time.time_ns() // 1_000_000
COUNT: Final = 3

CORRUPT: Final = error_codes.CORRUPT_MESSAGE
BAD_TIME: Final = error_codes.INVALID_TIMESTAMP
BAD_EPOCH: Final = error_codes.INVALID_PRODUCER_EPOCH
NOT_ALLOWED: Final = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NO_CODEC: Final = error_codes.UNSUPPORTED_COMPRESSION_TYPE


def header_of(codec: int = compression.NONE, **changes: int) -> BatchHeader:
    """The header of a usual batch of COUNT records, with these changes."""
    records = [Record(key=b"k", value=b"v", timestamp_ms=NOW_MS)] * COUNT
    header = parse_header(memoryview(build_batch(records)))
    return attrs.evolve(header, **{"attributes": codec, **changes})


def raw_record(offset_delta: int, *, attributes: int = 0, stamp: int = 0, rest: bytes = b"\2k\2v\0") -> bytes:
    """A record; `rest` begins with the length of its key."""
    body = bytes([attributes]) + varint(stamp) + varint(offset_delta) + rest
    return varint(len(body)) + body


def sealed(deltas: Sequence[int] = (0, 1, 2), codec: int = compression.NONE, **changes: int) -> bytes:
    """A batch of records with these offset deltas, and these changes of its header."""
    records = b"".join(map(raw_record, deltas))
    packed = compression.compress(codec, records) if codec else records
    return bytes(encode_batch(header_of(codec, **changes), packed))


def of_records(*records: bytes, codec: int = compression.NONE, count: int = COUNT) -> bytes:
    """A batch of these records."""
    packed = compression.compress(codec, b"".join(records)) if codec else b"".join(records)
    return bytes(encode_batch(header_of(codec, record_count=count, last_offset_delta=count - 1), packed))


def patched(batch: bytes, position: int, form: str, *values: int) -> bytes:
    """The same with these values at a place that the CRC does not cover, or with a wrong CRC."""
    changed = bytearray(batch)
    struct.pack_into(form, changed, position, *values)
    return bytes(changed)


def foreign_headers() -> Mapping[str, Foreign]:
    """All of them, by name."""
    usual = sealed()
    found = {
        "usual": Foreign(usual),
        "LogAppendTime": Foreign(sealed(attributes=LOG_APPEND_TIME)),
        "LogAppendTime without a time": Foreign(sealed(attributes=LOG_APPEND_TIME, max_timestamp_ms=-1), BAD_TIME),
        "LogAppendTime in the future": Foreign(
            sealed(attributes=LOG_APPEND_TIME, max_timestamp_ms=NOW_MS + 7_200_000), BAD_TIME
        ),
        "LogAppendTime and lz4": Foreign(sealed(codec=3, attributes=LOG_APPEND_TIME | 3)),
        "delete horizon": Foreign(sealed(attributes=DELETE_HORIZON)),
        "delete horizon and another maximum": Foreign(sealed(attributes=DELETE_HORIZON, max_timestamp_ms=NOW_MS - 7)),
        "control": Foreign(sealed(attributes=CONTROL), INVALID),
        "transactional without a producer": Foreign(sealed(attributes=TRANSACTIONAL), NOT_ALLOWED),
        "transactional with a producer": Foreign(
            sealed(attributes=TRANSACTIONAL, producer_id=4000, producer_epoch=0, base_sequence=0), NOT_ALLOWED
        ),
        "the bit 0x80": Foreign(sealed(attributes=0x80)),
        "the bits 0x7f00": Foreign(sealed(attributes=0x7F00)),
        "the bit 0x8000": Foreign(sealed(attributes=-0x8000)),
        "all unused bits and another maximum": Foreign(sealed(attributes=0x7F80, max_timestamp_ms=NOW_MS - 7)),
        "codec 5": Foreign(sealed(attributes=5), FAILED, NO_CODEC, "which tells what is wrong"),
        "codec 7": Foreign(sealed(attributes=7), FAILED, NO_CODEC, "which tells what is wrong"),
        "a leader epoch": Foreign(sealed(leader_epoch=17)),
        "producer, epoch -1": Foreign(sealed(producer_id=4001, producer_epoch=-1, base_sequence=0)),
        "producer, epoch -1, sequence 5": Foreign(sealed(producer_id=4002, producer_epoch=-1, base_sequence=5)),
        "producer, epoch -2": Foreign(sealed(producer_id=4003, producer_epoch=-2, base_sequence=0), BAD_EPOCH),
        "producer, sequence -1": Foreign(sealed(producer_id=4004, producer_epoch=0, base_sequence=-1), INVALID),
        "producer, epoch and sequence -1": Foreign(
            sealed(producer_id=4005, producer_epoch=-1, base_sequence=-1), INVALID
        ),
        "producer, sequence -2": Foreign(sealed(producer_id=4006, producer_epoch=0, base_sequence=-2), INVALID),
        "producer, sequence 5": Foreign(sealed(producer_id=4007, producer_epoch=0, base_sequence=5)),
        "no producer, epoch 3": Foreign(sealed(producer_epoch=3)),
        "no producer, sequence 3": Foreign(sealed(base_sequence=3)),
        "producer -2": Foreign(sealed(producer_id=-2)),
        "base offset 1": Foreign(sealed(base_offset=1), INVALID),
        "base offset -1": Foreign(sealed(base_offset=-1), INVALID),
        "base offset 2^62": Foreign(sealed(base_offset=1 << 62), INVALID),
        "a byte behind": Foreign(usual + b"\0"),
        "eleven bytes behind": Foreign(usual + bytes(11)),
        "twelve zero bytes behind": Foreign(usual + bytes(12), CORRUPT),
        "sixteen zero bytes behind": Foreign(usual + bytes(16), CORRUPT),
        "seventeen zero bytes behind": Foreign(usual + bytes(17), CORRUPT),
        "a hundred zero bytes behind": Foreign(usual + bytes(100), CORRUPT),
        "a hundred bytes 0xff behind": Foreign(usual + b"\xff" * 100, CORRUPT),
        "text behind": Foreign(usual + b"garbage" * 20, CORRUPT),
        "another batch behind": Foreign(usual + usual, INVALID),
        "a part of a batch behind": Foreign(usual + usual[:-1]),
        "the header of a batch behind": Foreign(usual + usual[:HEADER_BYTES]),
        "a part of a header behind": Foreign(usual + usual[:20]),
        "sixteen bytes of a header behind": Foreign(usual + usual[:16]),
        "a part of an old message behind": Foreign(usual + struct.pack(">qiIbb", 0, 30, 0, 1, 0)),
        "a batch of an unknown magic behind": Foreign(usual + patched(usual, 16, ">b", 3), CORRUPT),
        "a part of a batch of an unknown magic behind": Foreign(usual + patched(usual, 16, ">b", 3)[:-1], CORRUPT),
        "cut off": Foreign(usual[:-1], INVALID),
        "half a header": Foreign(usual[:30], INVALID),
        "a header": Foreign(usual[:HEADER_BYTES], INVALID),
        "a byte": Foreign(b"\0", INVALID),
        "no bytes": Foreign(b"", INVALID),
        "a length that is too large": Foreign(patched(usual, 8, ">i", len(usual) - LENGTH_END + 1), INVALID),
        "a length that is too small": Foreign(patched(usual, 8, ">i", len(usual) - LENGTH_END - 1), CORRUPT),
        "a length of 20": Foreign(patched(usual, 8, ">i", 20), CORRUPT),
        "a length of 13": Foreign(patched(usual, 8, ">i", 13), CORRUPT),
        "a length of 0": Foreign(patched(usual, 8, ">i", 0), CORRUPT),
        "a negative length": Foreign(patched(usual, 8, ">i", -1), CORRUPT),
        "magic 0": Foreign(patched(usual, 16, ">b", 0), INVALID),
        "magic 1": Foreign(patched(usual, 16, ">b", 1), INVALID),
        "magic 3": Foreign(patched(usual, 16, ">b", 3), CORRUPT),
        "magic -1": Foreign(patched(usual, 16, ">b", -1), CORRUPT),
        "a wrong CRC": Foreign(patched(usual, 17, ">I", 0), CORRUPT),
        "a wrong CRC and a base offset": Foreign(
            patched(patched(usual, 17, ">I", 0), 0, ">q", 1), INVALID, CORRUPT, "refused either way"
        ),
        "no records": Foreign(of_records(count=0), INVALID),
        "a count of 0": Foreign(sealed(record_count=0, last_offset_delta=-1), INVALID),
        "a count of -1": Foreign(sealed(record_count=-1, last_offset_delta=-2), INVALID),
        "a count that is too small": Foreign(sealed(record_count=2, last_offset_delta=1), INVALID),
        "a count that is too large": Foreign(sealed(record_count=4, last_offset_delta=3), INVALID),
        "a last offset delta that is too large": Foreign(sealed(last_offset_delta=7), INVALID),
        "a last offset delta that is too small": Foreign(sealed(last_offset_delta=1), INVALID),
        "a record with attributes": Foreign(of_records(*(raw_record(delta, attributes=0xFF) for delta in range(3)))),
        "a key of length -7": Foreign(
            of_records(*(raw_record(delta, rest=varint(-7) + b"\2v\0") for delta in range(3)))
        ),
        "a header without a key": Foreign(
            of_records(*(raw_record(delta, rest=b"\2k\2v\2\1\1") for delta in range(3))), INVALID
        ),
        "a negative number of headers": Foreign(
            of_records(*(raw_record(delta, rest=b"\2k\2v\1") for delta in range(3))), INVALID
        ),
        "a header without a value": Foreign(
            of_records(*(raw_record(delta, rest=b"\2k\2v\2\0\1") for delta in range(3)))
        ),
        "a wrong record length": Foreign(of_records(b"\2" + raw_record(0)[1:], raw_record(1), raw_record(2)), INVALID),
        "a byte behind the records": Foreign(of_records(*map(raw_record, range(3)), b"\0"), INVALID),
        "base timestamp -1": Foreign(sealed(base_timestamp_ms=-1, max_timestamp_ms=-1)),
        "base timestamp -2": Foreign(sealed(base_timestamp_ms=-2, max_timestamp_ms=-2)),
        "a maximum of -5": Foreign(sealed(max_timestamp_ms=-5)),
    }
    for name, codec in (("", 0), (" and lz4", 3), (" and zstd", 4), (" and gzip", 1), (" and snappy", 2)):
        found |= {
            f"equal offset deltas{name}": Foreign(sealed((0, 0, 0), codec), FAILED if codec else TAKEN),
            f"falling offset deltas{name}": Foreign(sealed((2, 1, 0), codec), FAILED if codec else TAKEN),
            f"offset deltas from 1{name}": Foreign(sealed((1, 2, 3), codec), FAILED if codec else TAKEN),
            f"negative offset deltas{name}": Foreign(sealed((-3, -2, -1), codec), FAILED if codec else TAKEN),
            f"offset deltas with gaps{name}": Foreign(sealed((0, 5, 1 << 20), codec), FAILED if codec else TAKEN),
        }
    return found
