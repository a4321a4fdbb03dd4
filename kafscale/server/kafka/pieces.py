"""Long requests and answers, made in pieces between which others are served, within bounds on their memory.

The objects of a long request take up to 40 times its bytes, so it waits until those under way leave room. An answer has
at most `max_response_bytes`; a long one waits for room of that size, and then keeps what it needs.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import groupby
from typing import Any

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.concurrency.byte_budget import ByteBudget, Share
from kafscale.errors import ProtocolError
from kafscale.store.file.open_files import Sendable
from kafscale.wire.codec import decoder_in_pieces, encoder_in_pieces

LONG_REQUEST_BYTES = 16 << 10  # decoding less takes 5 ms at the very worst, and 0.3 ms if it is of real names
LONG_REQUESTS_MAX_BYTES = 4 << 20  # of all under way; one of up to 16 MiB may be, alone
LONG_ANSWER_BYTES = 1 << 20
LONG_ANSWERS_UNDER_WAY = 4  # of the greatest size; of smaller ones, as many more


async def decode_in_pieces(message: type, version: int, body: memoryview) -> Any:
    pieces: Generator[None, None, tuple[Any, int]] = decoder_in_pieces(message, version)(body, 0)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return end.value[0]
        await trio.lowlevel.checkpoint()


@attrs.frozen(eq=False, repr=False)
class EncodedAnswer:
    """The buffers of a response without its header, and the share to release once they are sent."""

    buffers: list[Sendable]
    share: Share | None


@attrs.define(eq=False, repr=False)
class AnswerEncoder:
    """Encodes the answers of all connections, each of at most `max_bytes`."""

    max_bytes: int
    _budget: ByteBudget = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._budget = ByteBudget(LONG_ANSWERS_UNDER_WAY * self.max_bytes)

    @property
    def waiting_count(self) -> int:
        return self._budget.waiting_count

    async def encode(self, response: object, version: int) -> EncodedAnswer:
        """Encode a response, a short one without a checkpoint. Raises ProtocolError if it is too long."""
        parts: list[Buffer] = []
        joined = bytearray()
        share: Share | None = None
        try:
            for _ in encoder_in_pieces(type(response), version)(response, parts.append):
                joined += b"".join(parts)
                parts.clear()
                if len(joined) > LONG_ANSWER_BYTES and share is None:
                    share = await self._budget.share(self.max_bytes)
                self._check(joined)
                await trio.lowlevel.checkpoint()
            if not joined:
                return EncodedAnswer(list(parts), None)
            joined += b"".join(parts)
            self._check(joined)
        except BaseException:
            if share is not None:
                share.release()
            raise
        if share is not None:
            share.shrink(len(joined))
        return EncodedAnswer([joined], share)

    def _check(self, joined: bytearray) -> None:
        if len(joined) > self.max_bytes:
            raise ProtocolError(f"the answer would be larger than {self.max_bytes} bytes; ask for less at a time")


async def encode_with_records(response: object, version: int) -> list[Sendable]:
    """Encode a response of Fetch, whose records are sent unjoined; the read has bounded its size."""
    parts: list[Sendable] = []
    done: list[Sendable] = []
    for _ in encoder_in_pieces(type(response), version)(response, parts.append):
        done += _joined(parts)
        parts.clear()
        await trio.lowlevel.checkpoint()
    return done + _joined(parts) if done else parts


def _joined(parts: list[Sendable]) -> list[Sendable]:
    joined: list[Sendable] = []
    for is_encoded, run in groupby(parts, key=lambda part: part.__class__ is bytes):
        if is_encoded:
            joined.append(b"".join(run))  # type: ignore[arg-type] # they are bytes
        else:
            joined += run
    return joined
