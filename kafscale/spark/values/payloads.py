"""Values in one buffer by their beginnings and ends, and cursors that read many of them by array operations.

A step refuses a payload that it can't read; a library then reads it and reports the fault. So a step may refuse any
payload, but must never read one that the library would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafscale.spark.workers.slices import VARINT_MAX_BYTES, Positions, Raw, read_varints

_OFFSETS = {pa.binary(): np.int32, pa.string(): np.int32, pa.large_binary(): np.int64, pa.large_string(): np.int64}


@attrs.define(eq=False, kw_only=True, repr=False)
class Payloads(Sequence[bytes]):
    """Values in `data`, which has a byte at least, in order."""

    data: pa.Buffer
    starts: Positions
    ends: Positions

    @classmethod
    def of(cls, values: pa.Array | Sequence[bytes]) -> Payloads:
        """Take an Arrow array without copying, nulls as empty values, or a sequence."""
        if isinstance(values, Payloads):
            return values
        array = values if isinstance(values, pa.Array) else pa.array(values, pa.large_binary())
        if array.type not in _OFFSETS:
            array = array.cast(pa.large_binary())
        _, offsets, data = array.buffers()
        if not len(array) or data is None or not data.size:
            empty = np.zeros(len(array), np.int64)
            return cls(data=pa.py_buffer(b"\0"), starts=empty, ends=empty)
        dtype: Any = _OFFSETS[array.type]
        found = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * np.dtype(dtype).itemsize)
        bounds = found.astype(np.int64)
        first, size = int(bounds[0]), max(1, int(bounds[-1] - bounds[0]))
        first = min(first, data.size - size)
        bounds -= first
        return cls(data=data.slice(first, size), starts=bounds[:-1], ends=bounds[1:])

    @property
    def raw(self) -> Raw:
        return np.frombuffer(self.data, np.uint8)

    @property
    def lengths(self) -> Positions:
        return self.ends - self.starts

    def begin_with(self, prefix: bytes) -> NDArray[np.bool_]:
        found = self.lengths >= len(prefix)
        for number, byte in enumerate(prefix):
            found &= self.raw.take(self.starts + number, mode="clip") == byte
        return found

    def only(self, positions: Positions, skipped_bytes: int = 0) -> Payloads:
        return Payloads(data=self.data, starts=self.starts[positions] + skipped_bytes, ends=self.ends[positions])

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        data = self.data.to_pybytes()
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield data[start:end]

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            return list(self)[index]
        value: bytes = self.data.slice(int(self.starts[index]), int(self.lengths[index])).to_pybytes()
        return value


LANES_MIN_COUNT = 16  # payloads for which a step of all costs about what a library takes for them
LONE_STEPS_MAX = 64  # of items, with fewer: those that have more items than the others are left to the library

Numbers = NDArray[np.int64]


@attrs.define(eq=False, kw_only=True, repr=False)
class PayloadCursor:
    """The positions in some payloads, and which of them are good up to there.

    lone_steps_left: one element, shared by all cursors of a read; `may_step` counts it down.
    """

    data: pa.Buffer
    raw: Raw
    positions: Positions
    ends: Positions
    is_good: NDArray[np.bool_]
    lone_steps_left: list[int] = attrs.field(factory=lambda: [LONE_STEPS_MAX])

    @classmethod
    def of(cls, payloads: Payloads) -> PayloadCursor:
        return cls(
            data=payloads.data,
            raw=payloads.raw,
            positions=payloads.starts.copy(),
            ends=payloads.ends,
            is_good=np.ones(len(payloads), np.bool_),
        )

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def left(self) -> Numbers:
        """Return the number of bytes left in each; negative behind the end."""
        return self.ends - self.positions

    def only(self, rows: Positions) -> PayloadCursor:
        """Return a cursor for some payloads; `join` brings its positions back."""
        return PayloadCursor(
            data=self.data,
            raw=self.raw,
            positions=self.positions[rows],
            ends=self.ends[rows],
            is_good=self.is_good[rows],
            lone_steps_left=self.lone_steps_left,
        )

    def join(self, rows: Positions, other: PayloadCursor) -> None:
        self.positions[rows] = other.positions
        self.is_good[rows] = other.is_good

    def refuse(self, is_bad: NDArray[np.bool_]) -> None:
        self.is_good &= ~is_bad

    def may_step(self, rows: Positions) -> bool:
        """Tell whether to read the next items of some payloads; in the end too few are left to the library."""
        if len(rows) >= LANES_MIN_COUNT:
            return True
        self.lone_steps_left[0] -= 1
        if self.lone_steps_left[0] >= 0:
            return True
        self.is_good[rows] = False
        return False

    def varints(self) -> Numbers:
        """Read a number of each. Refuse numbers over 64 bits."""
        values, ends = read_varints(self.raw, self.positions)
        long = np.flatnonzero(ends - self.positions >= VARINT_MAX_BYTES)
        if len(long):
            self.is_good[long] &= self.raw.take(ends[long] - 1, mode="clip") <= 1
        self.positions = ends
        return values

    def slices(self, lengths: Numbers | int) -> tuple[Positions, Positions]:
        """Pass over a length of each. Refuse payloads that are shorter."""
        fits = (lengths >= 0) & (lengths <= self.left)
        starts = np.minimum(self.positions, self.ends)
        ends = starts + np.where(fits, lengths, 0)
        self.is_good &= fits
        self.positions = np.maximum(self.positions, ends)
        return starts, ends

    def fixed(self, size: int) -> NDArray[np.uint8]:
        """Read `size` bytes of each, as rows of a matrix."""
        starts, _ = self.slices(size)
        return self.raw.take(starts[:, np.newaxis] + np.arange(size), mode="clip")


def texts(found: pa.Array, cursor: PayloadCursor) -> pa.Array:
    """Turn bytes into texts, and refuse invalid UTF-8."""
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        rows = found.to_pylist()
    for number, row in enumerate(rows):
        try:
            row.decode()
        except UnicodeDecodeError:
            cursor.is_good[number], rows[number] = False, b""
    return pa.array(rows, pa.binary()).cast(pa.string())


def with_nulls(values: pa.Array, is_null: NDArray[np.bool_]) -> pa.Array:
    """Insert nulls between values. Members of a null record are not null, as their type forbids it."""
    indices = np.cumsum(~is_null) - 1
    if not pa.types.is_struct(values.type) or not values.type.num_fields:
        return values.take(pa.array(indices, mask=is_null))
    whole = values.take(pa.array(np.maximum(indices, 0)))
    columns = [whole.field(place) for place in range(values.type.num_fields)]
    return pa.StructArray.from_arrays(columns, fields=list(values.type), mask=pa.array(is_null))


def in_order(parts: Sequence[Sequence[pa.Array]], owners: Sequence[Positions]) -> Sequence[pa.Array]:
    if not parts:
        return ()
    if len(parts) == 1:
        return parts[0]
    order = pa.array(np.argsort(np.concatenate(owners), kind="stable"))
    return [pa.concat_arrays(columns).take(order) for columns in zip(*parts, strict=True)]


def offsets_column(counts: Numbers) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def refuse_repeated_keys(cursor: PayloadCursor, counts: Numbers, keys: pa.Array) -> None:
    """Refuse maps with a repeated key: libraries keep the last of its values."""
    owners = np.repeat(np.arange(len(cursor)), counts)
    codes = keys.dictionary_encode()
    pairs = np.sort(owners * max(1, len(codes.dictionary)) + codes.indices.to_numpy())
    twice = pairs[1:][pairs[1:] == pairs[:-1]] // max(1, len(codes.dictionary))
    cursor.is_good[twice] = False


class Unplanned(Exception):
    """The schemas have something that only the format's library reads."""


STEPS_MAX = 2000  # of a plan: a schema of few lines can have any number of fields


@attrs.define(eq=False, repr=False)
class Planner:
    """Counts the steps of a plan. Raises Unplanned for too many."""

    _steps_left: int = attrs.field(default=STEPS_MAX, init=False)

    def take_step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise Unplanned


@attrs.frozen(kw_only=True)
class Plan:
    """Reads payloads of one writer schema by columns into an array of `type`."""

    type: pa.DataType
    _read: Callable[[PayloadCursor], pa.Array]

    @classmethod
    def of(cls, make: Callable[[], Callable[[PayloadCursor], pa.Array]], type_: pa.DataType) -> Plan | None:
        """Make a plan of the steps that `make` returns; None if it raises Unplanned."""
        try:
            return cls(type=type_, read=make())
        except (Unplanned, RecursionError):
            return None

    def decode(self, payloads: Payloads, *, max_bytes: int) -> tuple[pa.Array, NDArray[np.bool_]]:
        """Return the values of the payloads that were read, and which these are; none longer than `max_bytes`."""
        cursor = PayloadCursor.of(payloads)
        cursor.refuse(payloads.lengths > max_bytes)
        found = self._read(cursor)
        is_read = cursor.is_good & (cursor.positions == cursor.ends)
        if not is_read.all():
            found = found.filter(pa.array(is_read))
        try:
            return found if found.type == self.type else found.cast(self.type), is_read
        except pa.ArrowInvalid:  # a time that is out of range in microseconds: the library's way tells which
            return found.slice(0, 0).cast(self.type), np.zeros(len(payloads), np.bool_)
