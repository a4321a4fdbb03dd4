"""Check the records of a batch before they are stored, as Kafka's DefaultRecord does.

    length | attributes 1 | timestamp delta | offset delta | key | value | header count | (header key | header value)...

All numbers but the attributes are zigzag varints; keys and values follow their length, which is below zero for null.
Each record must end where its length says, offset deltas count from 0, and the last record ends with the batch.
Timestamps and null keys are noted for the caller.

Records of one size and shape are checked together, by a slice for each byte of a length: 150 take 13 us, one by one 78.
A batch may be several runs of them, as timestamp deltas get longer after 64 ms. A check advances in steps, so that
other clients are served during a batch of a million records.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from typing import Final

import attrs

from kafscale.buffers import Buffer
from kafscale.errors import DecodeError, InvalidRecord, KafkaError, WrongOffsetDelta
from kafscale.wire.error_codes import MESSAGE_TOO_LARGE
from kafscale.wire.primitives import read_uvarint

STEP_UNITS: Final = 2048  # one record or header each, half a microsecond at most; records of one shape are cheaper
ALIKE_UNITS_SHIFT: Final = 4
ALIKE_MIN_COUNT: Final = 10  # checking fewer records one by one takes less
RUN_MIN_COUNT: Final = 32  # the same where the end of a run has to be found
RUN_UNITS: Final = 16  # which takes so much more
ALIKE_MAX_HEADERS: Final = 8
COPIED_MAX_BYTES: Final = 512  # of a record: slices of `bytes` are five times as fast as those of a memoryview
COPIED_IN_ALL_MAX_BYTES: Final = 2 << 20  # a tenth of a millisecond
NULL_KEYS_TOLD_MAX_COUNT: Final = 100  # of one batch; Kafka tells all, which can be many times the size of the batch

NO_TIMESTAMP_MS: Final = -1
_seven_bytes: Final = struct.Struct("7B").unpack_from  # no record is shorter
_BEYOND: Final = 1 << 70

# Offset deltas of one, two and three bytes: the first, the last of two, and the second of three, by index modulo 8192.
_DELTAS_1: Final = bytes(range(0, 128, 2))
_DELTAS_FIRST: Final = bytes(2 * index & 127 | 128 for index in range(8192))
_DELTAS_LAST: Final = bytes(2 * index >> 7 for index in range(8192))
_DELTAS_SECOND: Final = bytes(2 * index >> 7 | 128 for index in range(8192))
_DELTAS_END: Final = 1 << 20  # from here on they have four bytes

_STAMPS: Final = bytes((delta << 1) ^ (delta >> 7) for delta in range(-64, 64))
"""The zigzag form of every timestamp delta of one byte, in order."""
_STAMP_RANKS: Final = bytes(max(_STAMPS.find(byte), 0) for byte in range(256))
_EVEN_FIRST: Final = bytes(range(128, 256, 2))  # the first one of a number of several, not below 0


@attrs.define(eq=False, repr=False)
class RecordCheck:
    """Check of `count` uncompressed records, from `position` to the end of `records`.

    `needs_keys` notes records without a key. At most `headers_left` headers are checked one by one: a few compressed
    bytes can be millions.
    """

    records: Buffer
    position: int
    count: int
    base_timestamp_ms: int
    needs_keys: bool = False
    headers_left: int = sys.maxsize
    index: int = attrs.field(default=0, init=False)  # of the next record
    null_keys_count: int = attrs.field(default=0, init=False)
    null_keys: list[int] = attrs.field(factory=list, init=False)  # which records, counted from 0; the first ones
    _greatest_delta: int = attrs.field(default=-_BEYOND, init=False)
    _least_delta: int = attrs.field(default=_BEYOND, init=False)  # of those that have a timestamp
    _lacks_timestamp: bool = attrs.field(default=False, init=False)  # a record does, and none before it was that early
    _record_headers: int = attrs.field(default=0, init=False)  # left of the record at `index`, if they are many
    _record_end: int = attrs.field(default=0, init=False)  # of the same
    _alike_max_count: int = attrs.field(default=_DELTAS_END, init=False)  # twice as many as were alike before

    @property
    def max_timestamp_ms(self) -> int:
        """Greatest timestamp, and at least NO_TIMESTAMP_MS, as in Kafka."""
        return max(self.base_timestamp_ms + self._greatest_delta, NO_TIMESTAMP_MS)

    @property
    def min_timestamp_ms(self) -> int | None:
        """Least timestamp other than NO_TIMESTAMP_MS; None if no record has one."""
        return None if self._least_delta == _BEYOND else self.base_timestamp_ms + self._least_delta

    @property
    def first_timestamp_ms(self) -> int:
        """Least timestamp, which may be NO_TIMESTAMP_MS."""
        least_ms = self.base_timestamp_ms + self._least_delta
        return min(least_ms, NO_TIMESTAMP_MS) if self._lacks_timestamp else least_ms

    def advance(self, units: int = STEP_UNITS) -> int:
        """Return the units left after the check, above 0 at its end. Raises WrongOffsetDelta, InvalidRecord,
        KafkaError.
        """
        if self.count < ALIKE_MIN_COUNT and units >= self.count and not (self.index or self._record_headers):
            units -= self._take_any(self.count, units)  # nearly always all that there is to do
        while self.index < self.count:
            if units <= 0:
                return units
            if self._record_headers:
                units -= self._take_headers(units)
                continue
            first = self.index
            end_index = min(_end_of_width(first, self.count), first + self._alike_max_count)
            if end_index - first >= ALIKE_MIN_COUNT and self._take_alike(end_index):
                units -= 1 + ((end_index - first) >> ALIKE_UNITS_SHIFT)
                self._alike_max_count *= 2
            elif end_index - first > RUN_MIN_COUNT and self._take_alike(self._end_of_run(end_index)):
                units -= RUN_UNITS + ((end_index - first) >> ALIKE_UNITS_SHIFT)
                self._alike_max_count = 2 * (self.index - first)
            else:
                units -= self._take_any(min(end_index, first + units), units)
        if self.position != len(self.records):
            raise InvalidRecord(f"{self.count} records end at byte {self.position} of {len(self.records)}")
        return max(units, 1)

    def finish(self) -> None:
        while self.advance() <= 0:
            pass

    # ---- one by one ---------------------------------------------------------------------------------------------
    #
    # `_walk` runs once for each record of a batch whose records differ, so it is written out for speed: seven bytes at
    # once hold the length, attributes, timestamp delta, offset delta and key size of nearly every record, in one of
    # three layouts by how many of these take two bytes. A call is made only for a longer number. It takes 0.5 us a
    # record. Numbers stay in zigzag form as they were read: an even size is twice the real one, an odd one means null.

    def _take_any(self, end_index: int, units: int) -> int:
        """Check the records up to `end_index`, or to one with too many headers; return the units used."""
        first, stamps = self.index, list[int]()
        try:
            headers_count = self._walk(end_index, units, stamps)
        except (IndexError, ValueError, DecodeError, struct.error) as error:
            raise InvalidRecord(f"record {self.index} is not what its lengths say: {error}") from error
        self._note_stamps(stamps)
        if headers_count:
            self._count_headers(headers_count - self._record_headers)
        return self.index - first + headers_count

    def _walk(self, end_index: int, units: int, stamps: list[int]) -> int:
        """Do the work of `_take_any`; return the number of headers. After an error `index` is the wrong record's."""
        records, position, first = self.records, self.position, self.index
        stamp_before, headers_count, index = -1, 0, first
        try:
            for index in range(first, end_index):
                length, more, attributes, stamp, delta, delta_more, size = _seven_bytes(records, position)
                if length >= 128 and more < 128 and stamp < 128:
                    length += (more << 7) - 128
                    end = position + 2 + (length >> 1)
                    position += 5
                elif length < 128 and attributes < 128:
                    end = position + 1 + (length >> 1)
                    position += 4
                    stamp, delta, delta_more, size = attributes, stamp, delta, delta_more  # all one byte earlier
                elif length >= 128 and more < 128 and delta < 128:
                    length += (more << 7) - 128
                    end = position + 2 + (length >> 1)
                    position += 6
                    stamp, delta, delta_more, size = stamp + (delta << 7) - 128, delta_more, size, records[position + 1]
                else:
                    length, end, stamp, position = _read_start(records, position)
                    delta, delta_more, size = records[position : position + 3]
                    position += 1
                if stamp != stamp_before:
                    stamp_before = stamp
                    stamps.append(stamp)  # nearly always one for a batch
                if delta < 128:  # the size of the key follows
                    size = delta_more
                    position += 1
                elif delta_more < 128:
                    delta += (delta_more << 7) - 128
                    position += 2
                else:
                    delta, position = read_uvarint(records, position - 1)
                    size = records[position]
                    position += 1
                if delta != index << 1 or length & 1:
                    _refuse_start(index, delta, length)
                if size >= 128:
                    size, position = read_uvarint(records, position - 1)
                if not size & 1:
                    position += size >> 1
                elif self.needs_keys:
                    self._note_null_keys(index, index + 1)
                size = records[position]  # of the value
                position += 1
                if size >= 128:
                    size += (records[position] << 7) - 128
                    position += 1
                    if size >= 16384:
                        size, position = read_uvarint(records, position - 2)
                if not size & 1:
                    position += size >> 1
                headers = records[position]
                position += 1
                if headers:
                    headers, position = _read_count(records, position - 1)
                    headers_count += headers
                    if headers_count > units:
                        self._record_headers, self._record_end = headers, end
                        break
                    position = _skip_headers(records, position, headers)
                if position != end:
                    raise InvalidRecord(f"record {index} ends at byte {position}, its length says {end}")
            else:
                index = end_index
        finally:
            self.index, self.position = index, position
        return headers_count

    def _note_stamps(self, stamps: Iterable[int]) -> None:
        least, greatest, no_timestamp = (
            self._least_delta,
            self._greatest_delta,
            NO_TIMESTAMP_MS - self.base_timestamp_ms,
        )
        for stamp in stamps:
            delta = (stamp >> 1) ^ -(stamp & 1)
            if delta > greatest:
                greatest = delta
            if delta < least:
                if delta != no_timestamp:
                    least = delta
                else:
                    self._lacks_timestamp = True
        self._least_delta, self._greatest_delta = least, greatest

    def _take_headers(self, units: int) -> int:
        count = min(units, self._record_headers)
        try:
            self.position = _skip_headers(self.records, self.position, count)
        except (IndexError, DecodeError) as error:
            raise InvalidRecord(
                f"the headers of record {self.index} are not what their lengths say: {error}"
            ) from error
        self._count_headers(count)
        self._record_headers -= count
        if not self._record_headers:
            if self.position != self._record_end:
                raise InvalidRecord(f"record {self.index} ends at byte {self.position}, not at {self._record_end}")
            self.index += 1
        return count

    def _count_headers(self, count: int) -> None:
        self.headers_left -= count
        if self.headers_left < 0:
            raise KafkaError(MESSAGE_TOO_LARGE, f"too many headers, up to record {self.index} of {self.count}")

    def _note_null_keys(self, start_index: int, end_index: int) -> None:
        self.null_keys_count += end_index - start_index
        room = NULL_KEYS_TOLD_MAX_COUNT - len(self.null_keys)
        self.null_keys += range(start_index, min(end_index, start_index + room))

    # ---- together -----------------------------------------------------------------------------------------------

    def _take_alike(self, end_index: int) -> bool:
        """Check the records up to `end_index` by columns; return False, without effect, if their shapes differ.

        If all records have the same size and lengths, a byte of a length or an offset delta is at a fixed distance from
        that of the next record: a slice with the size as its step is the column of that byte. The first record tells
        where the columns are. A length must be constant, which one `count` checks; offset deltas must count up, which
        one comparison with a table checks. The bytes between are not read.
        """
        records, start, first = self.records, self.position, self.index
        count = end_index - first
        if end_index > _DELTAS_END or not count:
            return False
        deltas = _deltas(first, end_index)
        fixed: list[int] = []  # where a length is, which all records must have
        try:
            length, attributes = _note_number(records, start, fixed)
            stamp = attributes + 1
            delta = stamp + (1 if records[stamp] < 128 else 2)
            key = delta + len(deltas)
            if length & 1 or length >= 16384 or not _note_rest(records, key, attributes + (length >> 1), fixed):
                return False
        except IndexError:
            return False
        size = attributes - start + (length >> 1)
        end = start + count * size
        if end > len(records) or records[start] != records[end - size]:
            return False
        for position in fixed:
            if bytes(records[position:end:size]).count(records[position]) != count:
                return False
        for position, column in enumerate(deltas, delta):
            if bytes(records[position:end:size]) != column:
                return False
        stamps, no_timestamp = bytes(records[stamp:end:size]), NO_TIMESTAMP_MS - self.base_timestamp_ms
        if delta - stamp == 1:
            between = stamp_range(stamps, no_timestamp)
        else:
            between = _long_stamp_range(stamps, bytes(records[stamp + 1 : end : size]), no_timestamp)
        if between is None:
            return False
        self._least_delta = min(self._least_delta, between[0])
        self._lacks_timestamp |= between[0] == _BEYOND
        self._greatest_delta = max(self._greatest_delta, between[1])
        if self.needs_keys and records[key] & 1:
            self._note_null_keys(first, end_index)
        self.position, self.index = end, end_index
        return True

    def _end_of_run(self, end_index: int) -> int:
        """Return the end of the records with the length of the next one; its own index if they are few, or all.

        Timestamp deltas, and records with them, get a byte longer after 64 ms. The run of equal sizes ends where the
        column of a length byte changes.
        """
        records, start, first = self.records, self.position, self.index
        try:
            length, attributes = _note_number(records, start, [])
        except IndexError:
            return first
        size = attributes - start + (length >> 1)
        count = min(end_index - first, (len(records) - start) // size)
        for position in range(start, attributes):
            column = bytes(records[position : position + count * size : size])
            count -= len(column.lstrip(column[:1]))
        return first + count if RUN_MIN_COUNT <= count < end_index - first else first


def stamp_range(stamps: bytes, no_timestamp: int) -> tuple[int, int] | None:
    """Return the least and greatest of timestamp deltas of one byte, zigzag-encoded, without `no_timestamp`.

    If all are `no_timestamp`, it is the greatest, and the least is beyond any. None if deltas are longer, or
    `no_timestamp` may be among others.
    """
    if not stamps.isascii():
        return None
    low, high = sorted((_STAMP_RANKS[stamps[0]], _STAMP_RANKS[stamps[-1]]))
    if stamps.translate(None, _STAMPS[low : high + 1]):  # some are not between the first and the last
        ranks = stamps.translate(_STAMP_RANKS)
        low, high = min(ranks), max(ranks)
    return _told(low - 64, high - 64, no_timestamp)


def _long_stamp_range(firsts: bytes, lasts: bytes, no_timestamp: int) -> tuple[int, int] | None:
    """Return the range of deltas of two bytes that are not below 0; None for others."""
    if firsts.translate(None, _EVEN_FIRST) or not lasts.isascii():
        return None
    both = bytearray(2 * len(firsts))
    both[::2], both[1::2] = lasts, firsts
    numbers = struct.unpack(f">{len(firsts)}H", both)  # in the order of the deltas, as no first byte is below 128
    least, greatest = ((number >> 2 & 0x1FC0) + (number >> 1 & 63) for number in (min(numbers), max(numbers)))
    return _told(least, greatest, no_timestamp)


def _told(least: int, greatest: int, no_timestamp: int) -> tuple[int, int] | None:
    if least <= no_timestamp <= greatest:
        return None if least < greatest else (_BEYOND, greatest)
    return least, greatest


def copied_if_small(records: Buffer, count: int) -> Buffer:
    """Return the records as `bytes` if checking `count` small ones gains more than the copy costs."""
    size_bytes = len(records)
    if size_bytes <= COPIED_MAX_BYTES * count and size_bytes <= COPIED_IN_ALL_MAX_BYTES:
        return bytes(records)
    return records


def _note_number(records: Buffer, position: int, fixed: list[int]) -> tuple[int, int]:
    """Read an unsigned number of one or two bytes and its end; above 16383 if there are more. Raises IndexError."""
    fixed.append(position)
    number = records[position]
    if number < 128:
        return number, position + 1
    fixed.append(position + 1)
    return number + (records[position + 1] << 7) - 128, position + 2


def _note_rest(records: Buffer, position: int, end: int, fixed: list[int]) -> bool:
    """Note the positions of a record's lengths from its key on. False if they are wrong or large. Raises IndexError."""
    fields, is_headers = 2, False
    while True:
        for number in range(fields):
            size, position = _note_number(records, position, fixed)
            if size >= 16384 or (size & 1 and is_headers and not number & 1):  # a null header key
                return False
            if not size & 1:
                position += size >> 1
        if is_headers:
            return position == end
        fields = records[position]  # the number of headers, doubled as by zigzag
        fixed.append(position)
        position += 1
        if not fields:
            return position == end
        if fields & 1 or fields > 2 * ALIKE_MAX_HEADERS:
            return False
        is_headers = True


def _end_of_width(index: int, count: int) -> int:
    """Return the end of the records whose offset deltas have the width of that of `index`, and differ in two bytes."""
    return min(count, 64 if index < 64 else (index | 8191) + 1)


def _deltas(index: int, end_index: int) -> tuple[bytes, ...]:
    """Return the columns of the offset deltas of records that `_end_of_width` has cut."""
    if index < 64:
        return (_DELTAS_1[index:end_index],)
    start, end = index & 8191, ((end_index - 1) & 8191) + 1
    if index < 8192:
        return (_DELTAS_FIRST[start:end], _DELTAS_LAST[start:end])
    return (_DELTAS_FIRST[start:end], _DELTAS_SECOND[start:end], bytes((index >> 13,)) * (end - start))


def _skip_headers(records: Buffer, position: int, count: int) -> int:
    for _ in range(count):
        size = records[position]
        position += 1
        if size >= 128:
            size, position = read_uvarint(records, position - 1)
        if size & 1:
            raise DecodeError("a header without a key")
        position += size >> 1
        size = records[position]
        position += 1
        if size >= 128:
            size, position = read_uvarint(records, position - 1)
        if not size & 1:
            position += size >> 1
    return position


def _read_start(records: Buffer, position: int) -> tuple[int, int, int, int]:
    length, position = read_uvarint(records, position)
    end = position + (length >> 1)
    stamp = shift = 0
    for stamp_position in range(position + 1, position + 11):
        byte = records[stamp_position]
        if byte < 128:
            stamp |= byte << shift
            if stamp >> 64:
                break
            return length, end, stamp, stamp_position + 1
        stamp |= (byte & 127) << shift
        shift += 7
    raise DecodeError("a timestamp delta of more than 64 bits")


def _read_count(records: Buffer, position: int) -> tuple[int, int]:
    count, position = read_uvarint(records, position)
    if count & 1:
        raise DecodeError("a negative number of headers")
    return count >> 1, position


def _refuse_start(index: int, delta: int, length: int) -> None:
    if length & 1:
        raise InvalidRecord(f"record {index} has a negative length")
    raise WrongOffsetDelta(f"record {index} has the offset delta {(delta >> 1) ^ -(delta & 1)}")
