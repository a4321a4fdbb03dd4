"""Values as where each begins and ends in one buffer: a sequence of bytes, no objects until they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafscale.spark.workers.varints import Positions, Raw

_OFFSETS = {pa.binary(): np.int32, pa.string(): np.int32, pa.large_binary(): np.int64, pa.large_string(): np.int64}


@attrs.define(eq=False, kw_only=True, repr=False)
class Payloads(Sequence[bytes]):
    """Values that follow each other in `data`, with or without gaps; it has a byte at least."""

    data: pa.Buffer
    starts: Positions
    ends: Positions

    @classmethod
    def of(cls, values: pa.Array | Sequence[bytes]) -> Payloads:
        """Take them from an Arrow array, where nothing is copied and a null is an empty value, or from objects."""
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
        """Return the bytes of all."""
        return np.frombuffer(self.data, np.uint8)

    @property
    def lengths(self) -> Positions:
        """Return how long each is."""
        return self.ends - self.starts

    def begin_with(self, prefix: bytes) -> NDArray[np.bool_]:
        """Tell which ones have these bytes in front."""
        found = self.lengths >= len(prefix)
        for number, byte in enumerate(prefix):
            found &= self.raw.take(self.starts + number, mode="clip") == byte
        return found

    def only(self, positions: Positions, skipped_bytes: int = 0) -> Payloads:
        """Leave out all others, and so many bytes in front of each."""
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
