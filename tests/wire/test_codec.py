"""The codec over sample classes that between them use every type, tag, version range and nullability."""

from __future__ import annotations

import linecache
import struct
import traceback
from typing import ClassVar

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.buffers import Buffer
from kafscale.errors import DecodeError
from kafscale.wire.codec import decode, decoder, decoder_in_pieces, encode, encode_array, encoder_in_pieces
from kafscale.wire.messages.topics import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from kafscale.wire.primitives import TAGS_MAX_COUNT, uvarint
from kafscale.wire.schema import NEVER, Array, Nullable, mapped, wire
from kafscale.wire.source import PIECE_COUNT


@attrs.define(kw_only=True)
class Leader:
    leader_id: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32", default=-1)


@attrs.define(kw_only=True)
class Cursor:
    topic_name: str = wire("string")
    partition_index: int = wire("int32")


@attrs.define(kw_only=True)
class Partition:
    index: int = wire("int32")
    records: memoryview | list[bytes] | None = wire("records", default=None)
    aborted: list[int] | None = wire(Array("int64"), since=1, default=None)
    leader: Leader = wire(Leader, since=2, tag=0, factory=Leader)
    snapshot_id: bytes = wire("bytes", since=2, tag=300, default=b"")


@attrs.define(kw_only=True)
class Topic:
    name: str = wire("string", until=2, default="")
    topic_id: bytes = wire("uuid", since=3, default=bytes(16))
    partitions: list[Partition] = wire(Array(Partition), factory=list)


@attrs.define(kw_only=True)
class Row:
    numbers: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class Nested:
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FLEXIBLE_SINCE: ClassVar = 0
    ELEMENTS_MAX_COUNT: ClassVar = 20

    rows: list[Row] = wire(Array(Row), factory=list)


@attrs.define(kw_only=True)
class Rows:
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FLEXIBLE_SINCE: ClassVar = 0

    rows: list[Row] = wire(Array(Row), factory=list)


@attrs.define(kw_only=True)
class Everything:
    API_KEY: ClassVar = 1
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 3
    FLEXIBLE_SINCE: ClassVar = 2

    small: int = wire("int8")
    medium: int = wire("int16")
    flag: bool = wire("bool")
    name: str = wire("string")
    nick_name: str | None = wire("string", default=None)
    large: int = wire("int64")
    port: int = wire("uint16")
    checksum: int = wire("uint32")
    ratio: float = wire("float64", since=1, default=0.0)
    metadata: bytes = wire("bytes", default=b"")
    user_data: bytes | None = wire("bytes", default=None)
    tags: list[str] = wire(Array("string"), factory=list)
    ids: list[bytes] = wire(Array("uuid"), factory=list)
    matrix: list[list[int]] = wire(Array(Array("int16")), factory=list)
    topics: list[Topic] | None = wire(Array(Topic), default=None)
    cursor: Cursor | None = wire(Nullable(Cursor), since=2, default=None)
    cluster_id: str | None = wire("string", since=2, tag=0, default=None)
    endpoints: list[Cursor] = wire(Array(Cursor), since=2, tag=1, factory=list)


@attrs.define(kw_only=True)
class Rigid:
    API_KEY: ClassVar = 2
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FLEXIBLE_SINCE: ClassVar = NEVER

    name: str = wire("string")
    note: str | None = wire("string")
    records: memoryview | list[bytes] | None = wire("records")


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


texts = st.text(max_size=150)
blobs = st.binary(max_size=150)
uuids = st.binary(min_size=16, max_size=16)
cursors = st.builds(Cursor, topic_name=texts, partition_index=signed(32))
leaders = st.builds(Leader, leader_id=signed(32), leader_epoch=signed(32))


def partitions(version: int) -> st.SearchStrategy[Partition]:
    fields: dict[str, st.SearchStrategy[object]] = {"index": signed(32), "records": st.none() | blobs.map(memoryview)}
    if version >= 1:
        fields["aborted"] = st.none() | st.lists(signed(64), max_size=3)
    if version >= 2:
        fields |= {"leader": leaders, "snapshot_id": blobs}
    return st.builds(Partition, **fields)


def topics(version: int) -> st.SearchStrategy[Topic]:
    identity = {"name": texts} if version <= 2 else {"topic_id": uuids}
    return st.builds(Topic, partitions=st.lists(partitions(version), max_size=3), **identity)


def messages(version: int) -> st.SearchStrategy[Everything]:
    fields: dict[str, st.SearchStrategy[object]] = {
        "small": signed(8),
        "medium": signed(16),
        "flag": st.booleans(),
        "name": texts,
        "nick_name": st.none() | texts,
        "large": signed(64),
        "port": st.integers(0, 0xFFFF),
        "checksum": st.integers(0, 0xFFFFFFFF),
        "metadata": blobs,
        "user_data": st.none() | blobs,
        "tags": st.lists(texts, max_size=3),
        "ids": st.lists(uuids, max_size=3),
        "matrix": st.lists(st.lists(signed(16), max_size=3), max_size=3),
        "topics": st.none() | st.lists(topics(version), max_size=3),
    }
    if version >= 1:
        fields["ratio"] = st.floats(allow_nan=False)
    if version >= 2:
        fields |= {
            "cursor": st.none() | cursors,
            "cluster_id": st.none() | texts,
            "endpoints": st.lists(cursors, max_size=2),
        }
    return st.builds(Everything, **fields)


CASES = [st.tuples(st.just(version), messages(version)) for version in range(4)]  # once, as they are slow to make
versioned_messages = st.integers(0, 3).flatmap(lambda version: CASES[version])

SAMPLE = Everything(
    small=-1,
    medium=2,
    flag=True,
    name="orders",
    large=1 << 40,
    port=9092,
    checksum=0xFFFFFFFF,
    topics=[Topic(partitions=[Partition(index=3, records=[b"abc"], leader=Leader(leader_id=1, leader_epoch=7))])],
    cursor=Cursor(topic_name="t", partition_index=1),
    endpoints=[Cursor(topic_name="é", partition_index=2)],
)


def encoded(message: object, version: int) -> bytes:
    return b"".join(encode(message, version))


def decoded_in_pieces(version: int, raw: bytes) -> Everything:
    pieces = decoder_in_pieces(Everything, version)(memoryview(raw), 0)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            message, position = end.value
            if position != len(raw):
                raise DecodeError("bytes are left over") from None
            assert isinstance(message, Everything)
            return message


@given(versioned_messages)
def test_round_trip(case: tuple[int, Everything]) -> None:
    version, message = case
    raw = encoded(message, version)
    assert decode(Everything, version, raw) == message
    assert decoded_in_pieces(version, raw) == message
    parts: list[Buffer] = []
    for _ in encoder_in_pieces(Everything, version)(message, parts.append):
        pass
    assert b"".join(parts) == raw


@given(versioned_messages, st.data())
def test_a_truncated_message_is_refused(case: tuple[int, Everything], data: st.DataObject) -> None:
    version, message = case
    raw = encoded(message, version)
    with pytest.raises(DecodeError):
        decode(Everything, version, raw[: data.draw(st.integers(0, len(raw) - 1))])


@given(
    versioned_messages,
    st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))),
)
def test_damage_gives_a_message_or_the_one_error(case: tuple[int, Everything], damage: list[tuple[int, int]]) -> None:
    version, message = case
    raw = bytearray(encoded(message, version))
    for position, byte in damage:
        raw[position % len(raw)] = byte
    try:
        message = decode(Everything, version, raw)
    except DecodeError:
        with pytest.raises(DecodeError):
            decoded_in_pieces(version, bytes(raw))
    else:
        assert decoded_in_pieces(version, bytes(raw)) == message


@given(st.integers(0, 3), st.binary(max_size=300))
def test_garbage_gives_a_message_or_the_one_error(version: int, raw: bytes) -> None:
    try:
        decode(Everything, version, raw)
    except DecodeError:
        return


def test_layout_of_a_version_without_flexible_encoding() -> None:
    message = Rigid(name="é", note=None, records=[b"ab", b"c"])
    assert encoded(message, 0) == b"\x00\x02\xc3\xa9" + b"\xff\xff" + b"\x00\x00\x00\x03abc"


def test_layout_of_a_flexible_version() -> None:
    raw = encoded(SAMPLE, 3)
    topic = b"\x02" + bytes(16) + b"\x02" + struct.pack(">i", 3) + b"\x04abc\x00"
    partition_tags = b"\x01\x00\x09" + struct.pack(">ii", 1, 7) + b"\x00"
    cursor = b"\x01\x02t" + struct.pack(">i", 1) + b"\x00"
    message_tags = b"\x01\x01\x09\x02\x03\xc3\xa9" + struct.pack(">i", 2) + b"\x00"
    assert raw.endswith(topic + partition_tags + b"\x00" + cursor + message_tags)


def test_records_are_slices_and_never_joined() -> None:
    batches = [b"x" * 1000, b"y" * 1000]
    parts = encode(Rigid(name="", note="", records=list(batches)), 0)
    assert [id(part) for part in parts if len(part) == 1000] == [id(batch) for batch in batches]
    raw = bytearray(b"".join(parts))
    message = decode(Rigid, 0, raw)
    raw[-1] = ord("z")
    assert isinstance(message.records, memoryview)
    assert message.records[-1] == ord("z")


@pytest.mark.parametrize("version", range(MetadataResponse.MIN_VERSION, MetadataResponse.MAX_VERSION + 1))
def test_an_array_that_was_encoded_before_is_the_same_in_its_message(version: int) -> None:
    partitions = [
        MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=[1, 1], isr_nodes=[1])
        for index in range(200)
    ]
    encoded: list[bytes] = []
    for each in (partitions, encode_array(partitions, MetadataResponse, version)):
        topic = MetadataResponseTopic(name="t", partitions=each)  # type: ignore[arg-type]
        encoded.append(b"".join(encode(MetadataResponse(topics=[topic]), version)))
    assert encoded[0] == encoded[1]
    assert len(decode(MetadataResponse, version, encoded[1]).topics[0].partitions) == 200


def test_a_decoder_starts_at_a_position_and_returns_the_end_position() -> None:
    raw = encoded(SAMPLE, 1)
    message, end = decoder(Everything, 1)(memoryview(b"??" + raw + b"!"), 2)
    assert (message.name, end) == ("orders", 2 + len(raw))


def test_the_last_field_must_be_there_in_full() -> None:
    raw = encoded(Rigid(name="", note="", records=[b"abc"]), 0)
    with pytest.raises(DecodeError, match="records of 3 bytes is longer than the message"):
        decoder(Rigid, 0)(memoryview(raw[:-1]), 0)


def test_bytes_left_over_are_refused() -> None:
    with pytest.raises(DecodeError, match="1 bytes are left over"):
        decode(Everything, 1, encoded(SAMPLE, 1) + b"\0")


def test_unknown_tags_are_skipped_and_lying_ones_refused() -> None:
    raw = encoded(Everything(small=0, medium=0, flag=False, name="", large=0, port=0, checksum=0), 2)
    assert raw.endswith(b"\0")
    unknown = raw[:-1] + b"\x01\x85\x01\x03abc"
    assert decode(Everything, 2, unknown) == decode(Everything, 2, raw)
    for tags in (b"\x01\x07\x04abc", b"\x01\x00\x03\x02a", b"\x01\x00\x01\x02a", b"\xff\xff\xff\xff\x0f"):
        with pytest.raises(DecodeError):
            decode(Everything, 2, raw[:-1] + tags)


def test_null_is_refused_where_the_annotation_has_no_none() -> None:
    raw = bytearray(encoded(Rigid(name="ab", note="cd", records=None), 0))
    raw[4:6] = b"\xff\xff"
    assert decode(Rigid, 0, raw[:6] + raw[8:]).note is None
    with pytest.raises(DecodeError, match=r"Rigid\.name is null"):
        decode(Rigid, 0, b"\xff\xff" + raw[4:])


def test_null_elements_of_arrays_are_refused() -> None:
    raw = encoded(attrs.evolve(SAMPLE, tags=["abc"]), 0)
    with pytest.raises(DecodeError, match="element of an array is null"):
        decode(Everything, 0, raw.replace(b"\x00\x03abc", b"\xff\xff", 1))


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(DecodeError, match="utf-8"):
        decode(Rigid, 0, b"\x00\x01\xff\xff\xff\xff\xff\xff\xff")


@pytest.mark.parametrize(
    ("count", "left"), [(2**31 - 1, 100), (26, 50), (51, 100)], ids=["huge", "short of minimum", "one too many"]
)
def test_a_lie_about_an_arrays_length_allocates_nothing(count: int, left: int) -> None:
    @attrs.define(kw_only=True)
    class Names:
        MIN_VERSION: ClassVar = 0
        MAX_VERSION: ClassVar = 0
        FLEXIBLE_SINCE: ClassVar = NEVER
        names: list[str] = wire(Array("string"))

    with pytest.raises(DecodeError, match="longer than the message"):
        decode(Names, 0, struct.pack(">i", count) + bytes(left))


def test_a_traceback_shows_the_generated_line() -> None:
    linecache.checkcache()
    with pytest.raises(struct.error) as caught:
        encode(attrs.evolve(SAMPLE, medium=1 << 20), 0)
    text = "".join(traceback.format_exception(caught.value))
    assert "<kafscale encoder Everything v0>" in text
    assert "message.medium" in text


def test_versions_that_a_class_does_not_have_are_a_bug() -> None:
    with pytest.raises(ValueError, match="versions 0 to 3, not 4"):
        encode(SAMPLE, 4)


def test_a_field_that_a_version_lacks_needs_a_default() -> None:
    @attrs.define(kw_only=True)
    class Careless:
        MIN_VERSION: ClassVar = 0
        MAX_VERSION: ClassVar = 1
        FLEXIBLE_SINCE: ClassVar = NEVER
        late: int = wire("int32", since=1)

    with pytest.raises(TypeError, match=r"Careless\.late is not in version 0"):
        decode(Careless, 0, b"")
    assert decode(Careless, 1, b"\0\0\0\7").late == 7


def test_long_messages_are_gone_through_in_pieces() -> None:
    """They took as long as they were, during which nobody else was served."""
    count = 10 * PIECE_COUNT
    topics = [MetadataResponseTopic(name=str(index)) for index in range(count)]
    raw = encoded(MetadataResponse(topics=topics), 12)
    made: list[int] = []

    def make(index: int) -> MetadataResponseTopic:
        made.append(index)
        return topics[index]

    parts: list[Buffer] = []
    most = 0
    for _ in encoder_in_pieces(MetadataResponse, 12)(MetadataResponse(topics=mapped(make, range(count))), parts.append):
        most, made = max(most, len(made)), []
    assert b"".join(parts) == raw
    assert most == PIECE_COUNT
    assert sum(1 for _ in decoder_in_pieces(MetadataResponse, 12)(memoryview(raw), 0)) == 10


def test_elements_are_counted_over_all_arrays_of_a_message() -> None:
    """One byte of an array becomes an object of a hundred."""
    rows = b"\x0b" + b"\x02\x00\x00\x00\x07\x00" * 10 + b"\x00"
    assert len(decode(Nested, 0, rows).rows) == 10
    with pytest.raises(DecodeError, match="more than 20 elements"):
        decode(Nested, 0, b"\x0c" + b"\x02\x00\x00\x00\x07\x00" * 11 + b"\x00")


def test_tagged_fields_are_elements_too() -> None:
    """To step over one takes as long as to read an element, and has as few bytes."""
    tags = b"\x03" + b"\x05\x00" * 3
    rows = b"\x07" + (b"\x01" + tags) * 6 + b"\x00"
    with pytest.raises(DecodeError, match="more than 20 elements"):
        decode(Nested, 0, rows)
    assert len(decode(Nested, 0, b"\x06" + (b"\x01" + tags) * 5 + b"\x00").rows) == 5


def test_sections_of_very_many_tags_are_refused() -> None:
    tags = uvarint(TAGS_MAX_COUNT + 1) + b"\x7f\x00" * (TAGS_MAX_COUNT + 1)
    with pytest.raises(DecodeError, match="1001 tagged fields"):
        decode(Rows, 0, b"\x02\x01" + tags + b"\x00")
    knows_tags = encoded(attrs.evolve(SAMPLE, endpoints=[]), 2)
    assert knows_tags.endswith(b"\0")
    with pytest.raises(DecodeError, match="1001 tagged fields"):
        decode(Everything, 2, knows_tags[:-1] + tags)


def test_sections_of_tags_count_for_pieces() -> None:
    tags = uvarint(PIECE_COUNT) + b"\x05\x00" * PIECE_COUNT
    rows = b"\x05" + (b"\x01" + tags) * 4 + b"\x00"
    assert sum(1 for _ in decoder_in_pieces(Rows, 0)(memoryview(rows), 0)) == 4


def test_strings_have_the_same_length_limit_in_all_versions() -> None:
    """A longer one was taken, and versions whose lengths have 16 bits could not tell it: they raised struct.error."""
    longest = attrs.evolve(SAMPLE, name="x" * 0x7FFF)
    assert decode(Everything, 2, encoded(longest, 2)).name == decode(Everything, 0, encoded(longest, 0)).name
    with pytest.raises(DecodeError, match="string of 32768 bytes"):
        decode(Everything, 2, encoded(attrs.evolve(SAMPLE, name="x" * 0x8000), 2))
    large = attrs.evolve(SAMPLE, metadata=bytes(1 << 16))
    assert len(decode(Everything, 2, encoded(large, 2)).metadata) == 1 << 16
