"""One producer of a load, without its socket: what it sends next, and what it makes of the replies.

Within a transaction it has a number of batches in flight, to its partitions in turn. To commit it sends no more,
waits for the replies, and then for that to EndTxn. What is answered with CONCURRENT_TRANSACTIONS is counted and sent
again after a millisecond, sooner than any client does.
"""

from __future__ import annotations

import enum
import math
import struct
from array import array
from collections import deque
from collections.abc import Sequence

import attrs

from bench.frames import produce_error_code, produce_frame, produce_reply_layout
from bench.transactions.frames import (
    PRODUCE_VERSION,
    ProduceTemplate,
    Producing,
    end_txn_frame,
    end_txn_reply,
)
from kafscale.wire.error_codes import CONCURRENT_TRANSACTIONS, NONE, OUT_OF_ORDER_SEQUENCE_NUMBER, name

BACK_OFF_SECONDS = 0.001
CORRELATION_IDS = 1 << 31
_layout = produce_reply_layout()
_correlation_id = struct.Struct(">i")


class Kind(enum.Enum):
    """The kinds of requests."""

    BATCH = enum.auto()
    PLAIN = enum.auto()  # outside transactions, without a producer id
    END = enum.auto()


@attrs.define(eq=False)
class _Sent:
    """A request that is to be answered, or sent again."""

    kind: Kind
    correlation_id: int
    at: float
    place: int = 0  # of the template
    sequence: int = 0


@attrs.define(eq=False, kw_only=True)
class Producer:
    """A producer that is told of time and of replies, and leaves in `outgoing` what is to be sent.

    plain_frame: a Produce that is sent before each transaction, and waited for, to know what a round of the log takes.
    """

    templates: Sequence[ProduceTemplate]
    transactional_id: str | None
    producing: Producing
    in_flight: int
    commit_every_seconds: float = math.inf
    commit_every_batches: float = math.inf
    count: float = math.inf  # batches in all
    plain_frame: bytearray | None = None
    outgoing: bytearray = attrs.field(factory=bytearray, init=False)
    resumes_at: float = 0.0
    batch_latencies: array[float] = attrs.field(factory=lambda: array("d"), init=False)
    end_latencies: array[float] = attrs.field(factory=lambda: array("d"), init=False)
    plain_latencies: array[float] = attrs.field(factory=lambda: array("d"), init=False)
    concurrent_count: int = attrs.field(default=0, init=False)
    _sequences: list[int] = attrs.field(init=False)  # by template
    _awaited: deque[_Sent] = attrs.field(factory=deque, init=False)
    _refused: list[_Sent] = attrs.field(factory=list, init=False)
    _correlation_id: int = attrs.field(default=0, init=False)
    _begun_count: int = attrs.field(default=0, init=False)
    _open_count: int = attrs.field(default=0, init=False)  # batches of the transaction of now
    _opened_at: float = attrs.field(default=0.0, init=False)
    _is_ending: bool = attrs.field(default=False, init=False)
    _round_is_known: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._sequences = [0] * len(self.templates)

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing is under way, and no transaction open."""
        return not (self._awaited or self._refused or self._open_count)

    def go_on(self, now: float, *, is_over: bool) -> None:
        """Send what may be sent; when it is over, only what ends the transaction that is open."""
        if self._is_ending or self.resumes_at > now:
            return
        if self._refused:
            if not self._awaited:
                self._send_again(now)
            return
        is_over = is_over or self._begun_count >= self.count
        if self._commits(now, is_over=is_over):
            if not self._awaited:
                self._end(now)
            return
        if is_over:
            return
        if self.plain_frame is not None and not self._round_is_known:
            if not self._awaited:
                self._measure_round(self.plain_frame, now)
            return
        may_open = min(self.commit_every_batches, self._open_count + self.count - self._begun_count)
        while len(self._awaited) < self.in_flight and self._open_count < may_open:
            self._produce(now)

    def _commits(self, now: float, *, is_over: bool) -> bool:
        if self.transactional_id is None or not self._open_count:
            return False
        if self._open_count >= self.commit_every_batches or now - self._opened_at >= self.commit_every_seconds:
            return True
        return is_over

    def _produce(self, now: float) -> None:
        place = self._begun_count % len(self.templates)
        if self.transactional_id is not None:
            if not self._open_count:
                self._opened_at = now
            self._open_count += 1
        self._begun_count += 1
        self._send(_Sent(Kind.BATCH, self._next_id(), now, place, self._sequences[place]))
        self._sequences[place] += self.templates[place].record_count

    def _send_again(self, now: float) -> None:
        refused, self._refused = self._refused, []
        for partition in refused:
            partition.correlation_id = self._next_id()
            self._send(partition)

    def _send(self, sent: _Sent) -> None:
        template = self.templates[sent.place]
        self.outgoing += template.of_producer(sent.correlation_id, self.producing, sent.sequence)
        self._awaited.append(sent)

    def _end(self, now: float) -> None:
        assert self.transactional_id is not None
        sent = _Sent(Kind.END, self._next_id(), now)
        self.outgoing += end_txn_frame(sent.correlation_id, self.transactional_id, self.producing)
        self._awaited.append(sent)
        self._is_ending = True

    def _measure_round(self, frame: bytearray, now: float) -> None:
        sent = _Sent(Kind.PLAIN, self._next_id(), now)
        _correlation_id.pack_into(frame, 8, sent.correlation_id)
        self.outgoing += frame
        self._awaited.append(sent)

    def _next_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) % CORRELATION_IDS
        return self._correlation_id

    # ---- replies ----------------------------------------------------------------------------------------------

    def take(self, reply: memoryview, now: float) -> None:
        """Take a reply, its size in front. Raises RuntimeError if it is none, or the broker refuses for good."""
        sent = self._awaited.popleft()
        if _correlation_id.unpack_from(reply, 4)[0] != sent.correlation_id:
            raise RuntimeError("the broker answered out of order")
        if sent.kind is Kind.END:
            self._take_end(reply, sent, now)
            return
        error_code = _layout.unpack(reply)[2] if len(reply) == _layout.size else -1
        if error_code != NONE:
            self._take_refusal(produce_error_code(reply, PRODUCE_VERSION), sent, now)
        elif sent.kind is Kind.PLAIN:
            self.plain_latencies.append(now - sent.at)
            self._round_is_known = True
        else:
            self.batch_latencies.append(now - sent.at)

    def _take_end(self, reply: memoryview, sent: _Sent, now: float) -> None:
        error_code, following = end_txn_reply(reply)
        self._is_ending = False  # if it was refused, the transaction is open still, and is ended again
        if error_code != NONE:
            self._back_off(error_code, now)
            return
        self.end_latencies.append(now - sent.at)
        self.producing = following
        self._sequences = [0] * len(self.templates)
        self._open_count = 0
        self._round_is_known = False

    def _take_refusal(self, error_code: int, sent: _Sent, now: float) -> None:
        """Drop later batches of a partition whose batch was refused, as they are out of order."""
        if error_code != OUT_OF_ORDER_SEQUENCE_NUMBER or not self._refused:
            self._back_off(error_code, now)
        self._refused.append(sent)

    def _back_off(self, error_code: int, now: float) -> None:
        if error_code != CONCURRENT_TRANSACTIONS:
            raise RuntimeError(f"the broker refused a request: {name(error_code)}")
        self.concurrent_count += 1
        self.resumes_at = now + BACK_OFF_SECONDS


def plain_frame(partition: int, batch: bytes) -> bytearray:
    """A Produce outside transactions, without a producer id."""
    return bytearray(produce_frame(0, partition, batch, version=PRODUCE_VERSION))
