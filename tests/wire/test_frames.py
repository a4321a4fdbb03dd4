from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import DecodeError, FrameTooLarge
from kafscale.wire.frames import (
    FrameReader,
    RequestHeader,
    parse_request_header,
    parse_response_header,
    request_frame,
    response_frame,
)
from kafscale.wire.schema import NEVER


def flexible_since(key: int) -> int:
    return {0: 9, 18: 3}.get(key, NEVER)


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def frames_of(reader: FrameReader, chunks: list[bytes]) -> list[bytes]:
    frames = []
    for chunk in chunks:
        reader.receive_data(chunk)
        frames += [bytes(frame) for frame in reader.next_frames()]
    return frames


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 300)))
def test_frames_come_out_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = framed(*bodies)
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    reader = FrameReader(100)
    assert frames_of(reader, [stream[a:b] for a, b in itertools.pairwise(edges)]) == bodies
    assert reader.begun_bytes == 0


def test_one_byte_at_a_time() -> None:
    bodies = [b"first", b"", b"third" * 20]
    stream = framed(*bodies)
    assert frames_of(FrameReader(100), [stream[i : i + 1] for i in range(len(stream))]) == bodies


def test_frames_of_one_read_are_slices_of_its_buffer() -> None:
    stream = bytearray(framed(*[b"x" * 10] * 60))
    reader = FrameReader(100)
    reader.receive_data(stream)
    frames = reader.next_frames()
    stream[-1] = ord("y")
    assert len(frames) == 60
    assert bytes(frames[-1]) == b"xxxxxxxxxy"


def test_only_the_frame_that_is_cut_is_copied() -> None:
    """All that came with the rest of it used to be copied too."""
    stream = b"".join(struct.pack(">i", 10) + bytes([number]) * 10 for number in range(10))
    reader = FrameReader(100)
    reader.receive_data(stream[:20])
    first = reader.next_frames()
    rest = stream[20:]
    reader.receive_data(rest)
    frames = reader.next_frames()
    assert [bytes(frame) for frame in [*first, *frames]] == [bytes([number]) * 10 for number in range(10)]
    assert [frame.obj is rest for frame in frames] == [False] + [True] * 8
    assert reader.begun_bytes == 0


@pytest.mark.parametrize("size", [-1, -(2**31), 101, 2**31 - 1])
def test_a_size_past_the_limit_is_refused_before_the_frame_arrives(size: int) -> None:
    reader = FrameReader(100)
    reader.receive_data(struct.pack(">i", size))
    with pytest.raises(FrameTooLarge, match=str(size)):
        reader.next_frames()


def test_frames_before_a_bad_size_are_returned_first() -> None:
    reader = FrameReader(100)
    reader.receive_data(framed(b"good") + struct.pack(">i", -5))
    assert [bytes(frame) for frame in reader.next_frames()] == [b"good"]
    with pytest.raises(FrameTooLarge):
        reader.next_frames()


def test_a_promised_size_allocates_nothing() -> None:
    reader = FrameReader(1 << 30)
    tracemalloc.start()
    reader.receive_data(struct.pack(">i", 1 << 30) + b"abc")
    assert reader.next_frames() == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000


def test_a_long_frame_in_small_reads_costs_little_more_than_its_size() -> None:
    body = bytes(range(256)) * 1024
    stream = framed(body)
    reader = FrameReader(1 << 20)
    tracemalloc.start()
    for start in range(0, len(stream) - 7, 7):
        reader.receive_data(stream[start : start + 7])
        assert reader.next_frames() == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    reader.receive_data(stream[reader.begun_bytes :])
    assert reader.next_frames() == [body]
    assert peak < 2 * len(body)


def test_a_large_frame_is_taken_over_and_the_next_one_follows() -> None:
    reader = FrameReader(1000, large_frame_bytes=64)
    reader.receive_data(framed(b"small") + struct.pack(">i", 500) + b"the beginning")
    assert [bytes(frame) for frame in reader.next_frames()] == [b"small"]
    assert reader.announced_bytes == 500
    assert reader.take_large_frame() == b"the beginning"
    assert reader.begun_bytes == 0
    assert frames_of(reader, [framed(b"next")]) == [b"next"]


def test_a_large_frame_can_be_taken_after_several_reads() -> None:
    reader = FrameReader(1000, large_frame_bytes=64)
    for chunk in (b"\0\0", b"\0\x65"):
        reader.receive_data(chunk)
        assert reader.next_frames() == []
    for chunk in (b"ab", b"cd"):
        reader.receive_data(chunk)
    assert reader.take_large_frame() == b"abcd"


def test_a_frame_that_is_small_or_complete_is_not_taken_over() -> None:
    reader = FrameReader(1000, large_frame_bytes=64)
    assert reader.take_large_frame() is None
    reader.receive_data(struct.pack(">i", 64) + b"half")
    assert reader.next_frames() == []
    assert reader.take_large_frame() is None
    reader = FrameReader(1000, large_frame_bytes=64)
    reader.receive_data(struct.pack(">i", 65))
    assert reader.next_frames() == []
    reader.receive_data(b"x" * 65)
    assert reader.take_large_frame() is None
    assert [len(frame) for frame in reader.next_frames()] == [65]


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "é" * 100])
@pytest.mark.parametrize(
    ("api_key", "version", "flexible"), [(0, 8, False), (0, 9, True), (18, 4, True), (77, 1, False)]
)
def test_request_header_round_trip(client_id: str | None, api_key: int, version: int, flexible: bool) -> None:
    header = RequestHeader(api_key, version, -7, client_id)
    (frame,) = frames_of(FrameReader(1000), [b"".join(request_frame(header, [b"bo", b"dy"], flexible_header=flexible))])
    parsed = parse_request_header(memoryview(frame), flexible_since)
    assert (parsed.api_key, parsed.api_version, parsed.correlation_id, parsed.client_id) == (
        api_key,
        version,
        -7,
        client_id,
    )
    assert frame[parsed.body_offset :] == b"body"


def test_tagged_fields_of_a_request_header_are_skipped() -> None:
    frame = struct.pack(">hhih", 18, 3, 1, -1) + b"\x02\x00\x01a\x05\x02bc" + b"body"
    header = parse_request_header(memoryview(frame), flexible_since)
    assert frame[header.body_offset :] == b"body"


@given(st.binary(max_size=40))
def test_any_request_header_parses_or_raises_the_one_error(frame: bytes) -> None:
    try:
        header = parse_request_header(memoryview(frame), flexible_since)
    except DecodeError:
        return
    assert header.body_offset <= len(frame)


@pytest.mark.parametrize("flexible", [False, True])
def test_response_frame(flexible: bool) -> None:
    raw = b"".join(response_frame(42, [b"bo", memoryview(b"dy")], flexible))
    assert raw == struct.pack(">ii", 9 if flexible else 8, 42) + (b"\0" if flexible else b"") + b"body"
    correlation_id, start = parse_response_header(memoryview(raw)[4:], flexible_header=flexible)
    assert (correlation_id, raw[4 + start :]) == (42, b"body")


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\1\0\5"])
def test_a_response_header_that_ends_early(frame: bytes) -> None:
    with pytest.raises(DecodeError):
        parse_response_header(memoryview(frame), flexible_header=True)


def test_a_partial_frame_reports_its_received_and_announced_bytes_and_api_key() -> None:
    reader = FrameReader(1000)
    told = []
    for byte in framed(b"\0\0abc")[:7]:
        reader.receive_data(bytes([byte]))
        assert reader.next_frames() == []
        told.append((reader.begun_bytes, reader.announced_bytes, reader.begins_with(b"\0\0")))
    assert told == [(1, 0, None), (2, 0, None), (3, 0, None), (4, 5, None), (5, 5, None), (6, 5, True), (7, 5, True)]
    assert reader.begins_with(b"\0\1") is False
    reader.clear()
    assert (reader.begun_bytes, reader.announced_bytes) == (0, 0)
    assert frames_of(reader, [framed(b"anew")]) == [b"anew"]


def test_a_few_bytes_of_the_next_frame_do_not_hold_a_whole_read() -> None:
    """They did: 256 KiB for each connection, whatever was left of them."""
    reader = FrameReader(1 << 20)
    tracemalloc.start()
    reader.receive_data(framed(bytes(200_000)) + b"\0\0")
    assert len(reader.next_frames()) == 1
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reader.begun_bytes == 2
    assert held < 10_000
