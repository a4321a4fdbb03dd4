"""Unpack compressed batches off the event loop, within bounds of memory.

Up to USUAL_MAX_BYTES a few are unpacked at once, above that one in the whole broker. A batch holds room for its stated
unpacked size, or for USUAL_MAX_BYTES until that is known; one that states too little counts as large. So only another
large batch waits behind a large one. The work runs without the interpreter's lock.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Final

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.concurrency.metering import run_in_thread
from kafscale.errors import KafkaError
from kafscale.wire import compression, error_codes
from kafscale.wire.batch_header import HEADER_BYTES, BatchHeader

USUAL_MAX_BYTES: Final = 16 << 20  # no batch of a client's default settings unpacks to more
USUAL_MAX_COUNT: Final = 4

_cores_count = cache(os.cpu_count)  # which reads files each time


@attrs.define(eq=False, repr=False)
class Unpacking:
    """One per broker. A batch may unpack to `max_batch_bytes`."""

    max_batch_bytes: int
    _usual: ByteBudget = attrs.field(init=False)
    _large: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _threads: trio.CapacityLimiter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        usual_count = min(max(_cores_count() or 2, 2), USUAL_MAX_COUNT)
        self._usual = ByteBudget(usual_count * USUAL_MAX_BYTES)
        self._threads = trio.CapacityLimiter(usual_count + 1)

    @asynccontextmanager
    async def unpacked(
        self, header: BatchHeader, batch: memoryview, max_bytes: int, *, strict: bool = False
    ) -> AsyncIterator[Buffer]:
        """Unpack a compressed batch; the result must be released by the end of the block.

        `strict` refuses forms of compression that some clients can't read. Raises KafkaError: MESSAGE_TOO_LARGE if it
        unpacks to more than `max_bytes`, or than a batch may.
        """
        max_bytes = min(max_bytes, self.max_batch_bytes)
        stated = compression.stated_bytes(header.codec, batch[HEADER_BYTES:])
        likely_bytes = USUAL_MAX_BYTES if stated is None else max(stated, compression.FIRST_BUFFER_BYTES)
        usual_bytes = min(max_bytes, likely_bytes, USUAL_MAX_BYTES)
        share = await self._usual.share(usual_bytes)
        assert share is not None
        try:
            records = await self._unpack(header, batch, usual_bytes, strict, usual_bytes < max_bytes)
            if records is not None:
                share.shrink(len(records))
                yield records
                return
        finally:
            share.release()
        if usual_bytes < max_bytes:
            async with self._large:
                records = await self._unpack(header, batch, max_bytes, strict, False)
                if records is not None:
                    yield records
                    return
        raise KafkaError(error_codes.MESSAGE_TOO_LARGE, f"a batch decompresses to more than {max_bytes} bytes")

    async def _unpack(
        self, header: BatchHeader, batch: memoryview, max_bytes: int, *strict_and_believes: bool
    ) -> Buffer | None:
        work = (header, batch, max_bytes, *strict_and_believes)
        return await run_in_thread(unpack_at_most, *work, limiter=self._threads)


def unpack_at_most(
    header: BatchHeader, batch: memoryview, max_bytes: int, strict: bool = False, believes_stated: bool = True
) -> Buffer | None:
    """Unpack a compressed batch; None if the result is larger. Raises KafkaError if it is malformed.

    `believes_stated` trusts a batch that states a larger size, which may be damage or a lie: only unpacking tells.
    """
    body = batch[HEADER_BYTES:]
    stated = compression.stated_bytes(header.codec, body) if believes_stated else None
    if stated is not None and stated > max_bytes:
        return None
    try:
        return compression.decompress(header.codec, body, max_bytes, strict=strict)
    except KafkaError as exc:
        if exc.code == error_codes.MESSAGE_TOO_LARGE:
            return None
        raise
