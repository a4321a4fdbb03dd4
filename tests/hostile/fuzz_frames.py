"""Requests that are nearly right: valid frames of every API and version, and what mutations make of them.

All of it follows from a `Random`. A frame is generated from the declarations of its message class, with names, ids and
numbers of which many mean something to a broker that has the topic and the group named here, and then left as it is,
or mutated: bits, bytes and runs changed, cut out, repeated or inserted, lengths made huge or negative, the end cut off.
The size in front of a frame is always that of what follows, so a broker need not wait for more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import attrs

from kafscale.api.handling.calls import Api
from kafscale.api.table import every_api
from kafscale.wire import codec, compression
from kafscale.wire.batch_header import HEADER_BYTES, set_crc
from kafscale.wire.frames import RequestHeader, request_frame
from kafscale.wire.records import ProducerStamp, Record, build_batch
from kafscale.wire.schema import FIXED, STRING_MAX_BYTES, Array, Field, FieldType, Nullable, fields_of

TOPIC = "fuzzed"
GROUP = "fuzzed-group"
CLIENT_ID = "fuzzer"
ITEMS_MAX_COUNT = 3  # of an array, as a rule
MANY_ITEMS_COUNT = 300  # of one in twenty
MUTATIONS_MAX_COUNT = 6
RUN_MAX_BYTES = 64
LONGEST_SHARE = 0.005  # of strings
SIZE_BYTES = 4

_STRINGS: Sequence[str] = (
    *(TOPIC, TOPIC, TOPIC, GROUP, GROUP),
    *("", "range", "consumer", "x" * 300, "..", "a/b", "\x1b[2J\u202e", "retention.ms", "cleanup.policy", "1", "-1"),
)
_LONGEST = "x" * STRING_MAX_BYTES
_NUMBERS: Sequence[int] = (0, 0, 0, 1, 1, 2, 3, -1, -2, 100, 500, 10_000, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_LENGTHS: Sequence[bytes] = (b"\x7f\xff", b"\xff\xfe", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\xff" * 10, b"\0")
_CODECS = (compression.NONE, compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD)


@attrs.frozen(kw_only=True)
class Frame:
    """One request as it goes over the wire."""

    api: Api
    version: int
    data: bytes


def make_frame(random: Random, *, correlation_id: int, topic_id: bytes, mutated_share: float) -> Frame:
    """Any API in any version, mutated with this probability. `topic_id` is that of the topic named here."""
    api = random.choice(every_api())
    version = random.randint(api.min_version, api.max_version)
    maker = _Maker(random, version, topic_id)
    message = maker.struct(api.request)
    header = RequestHeader(
        api_key=api.key, api_version=version, correlation_id=correlation_id, client_id=random.choice([CLIENT_ID, ""])
    )
    flexible = codec.is_flexible(api.request, version)
    data = b"".join(request_frame(header, codec.encode(message, version), flexible_header=flexible))
    if random.random() < mutated_share:
        body = mutate(random, data[SIZE_BYTES:])
        data = len(body).to_bytes(SIZE_BYTES) + body
    return Frame(api=api, version=version, data=data)


def mutate(random: Random, data: bytes) -> bytes:
    """Change a few places. What comes is never longer than twice what was given, and a few runs."""
    changed = bytearray(data)
    for _ in range(random.randint(1, MUTATIONS_MAX_COUNT)):
        random.choice(_MUTATIONS)(random, changed)
    return bytes(changed)


def _flip_bit(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set_byte(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice([0, 1, 0x7F, 0x80, 0xFF])


def _set_length(random: Random, data: bytearray) -> None:
    position = random.randint(0, len(data))
    length = random.choice(_LENGTHS)
    data[position : position + len(length)] = length


def _cut_out(random: Random, data: bytearray) -> None:
    position = random.randint(0, len(data))
    del data[position : position + random.randint(1, RUN_MAX_BYTES)]


def _repeat(random: Random, data: bytearray) -> None:
    position = random.randint(0, len(data))
    run = data[position : position + random.randint(1, RUN_MAX_BYTES)]
    data[position:position] = run * random.choice([1, 1, 10])


def _insert(random: Random, data: bytearray) -> None:
    position = random.randint(0, len(data))
    data[position:position] = random.randbytes(random.randint(1, RUN_MAX_BYTES))


def _cut_end(random: Random, data: bytearray) -> None:
    del data[random.randint(0, len(data)) :]


_MUTATIONS: Sequence[Callable[[Random, bytearray], None]] = (
    *(_flip_bit, _flip_bit, _set_byte, _set_byte, _set_length, _set_length),
    *(_cut_out, _repeat, _insert, _cut_end),
)


@attrs.frozen
class _Maker:
    random: Random
    version: int
    topic_id: bytes

    def struct(self, cls: Any) -> Any:
        return cls(**{field.name: self._field(field) for field in fields_of(cls) if field.is_in(self.version)})

    def _field(self, field: Field) -> Any:
        if field.tag is not None and self.random.random() < 0.5:
            return field.default
        if field.nullable and self.random.random() < 0.1:
            return None
        return self._value(field.type)

    def _value(self, type_: FieldType) -> Any:
        match type_:
            case Array(of=of):
                most = MANY_ITEMS_COUNT if self.random.random() < 0.05 else ITEMS_MAX_COUNT
                return [self._value(of) for _ in range(self.random.randint(0, most))]
            case Nullable(of=of):
                return None if self.random.random() < 0.3 else self.struct(of)
            case type():
                return self.struct(type_)
            case "string":
                return _LONGEST if self.random.random() < LONGEST_SHARE else self.random.choice(_STRINGS)
            case "bytes":
                return self.random.randbytes(self.random.choice([0, 4, 40]))
            case "records":
                return self._batch()
            case "uuid":
                return self.random.choice([self.topic_id, bytes(16), self.random.randbytes(16)])
            case "bool":
                return self.random.random() < 0.5
            case "float64":
                return self.random.choice([0.0, 1.0, -1.0, 1e300, float("inf"), float("nan")])
        return self._number(FIXED[type_])

    def _number(self, code: str) -> int:
        bits = struct.calcsize(f">{code}") * 8
        number = self.random.choice(_NUMBERS) if self.random.random() < 0.9 else self.random.getrandbits(bits)
        number = int(number) & ((1 << bits) - 1)
        is_negative = not code.isupper() and number >> (bits - 1)
        return number - (1 << bits) if is_negative else number

    def _batch(self) -> memoryview:
        """Half of them mutated, most of these with a checksum that is right, so that more than that is looked at."""
        records = [
            Record(
                key=self.random.choice([None, b"", b"key"]),
                value=self.random.choice([None, b"", b"value" * self.random.randint(1, 200)]),
                timestamp_ms=self.random.choice([0, -1, 1_700_000_000_000, 2**62]),
                headers=[("name", None), ("name", b"1")] * self.random.randint(0, 2),
            )
            for _ in range(self.random.randint(1, ITEMS_MAX_COUNT))
        ]
        producer_id = self.random.choice([-1, *_NUMBERS])
        stamp = ProducerStamp(producer_id, -1 if producer_id < 0 else 0, self.random.randint(-1, 2))
        batch = build_batch(records, codec=self.random.choice(_CODECS), producer=stamp)
        if self.random.random() < 0.5:
            return memoryview(batch)
        batch = bytearray(mutate(self.random, bytes(batch)))
        if self.random.random() < 0.8 and len(batch) >= HEADER_BYTES:
            set_crc(memoryview(batch))
        return memoryview(batch)
