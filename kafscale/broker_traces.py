"""Trace a broker's requests with OpenTelemetry: Produce → log round → flush → PUT, and Fetch → GET.

Everything is put around a broker's parts when it starts, and imported only with `--traces-endpoint`: a broker without
traces runs the same code as before. Only spans that are sampled cost more than their decision.

- A request has a span from its arrival to its reply; alike Produces of one read share one. The first trace context in
  the headers of its records is its parent, further ones are links. Compressed records are not unpacked for it.
- A log round, one sync of the write-ahead log or one object of it, is a child of its first Produce and linked to the
  others; a flush is a child of the oldest round whose records it takes, and linked to others.
- Requests to the store have a span within these. Reads ahead, merges and checkpoints have none.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import attrs
import trio
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, get_current_span, use_span

from kafscale.api.handling.calls import Call, ListedApi, Peer
from kafscale.api.handling.services import Services
from kafscale.api.produce import Pending, PendingProduce, ProduceGroup, ShortWay
from kafscale.buffers import size_of
from kafscale.concurrency.signals import Signal
from kafscale.config import Settings
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.flush.upload import Uploader
from kafscale.log.partition.chunks import Lease
from kafscale.log.partition.partition import FlushPlan, Partition
from kafscale.log.partition.tail import TailBatch
from kafscale.log.wal.journal import FlushOnAppend, Round
from kafscale.log.wal.local_wal import Wal
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.server.kafka.dispatch import Dispatcher, EncodedReply, Request
from kafscale.store.base import ForwardingStore, ObjectPart
from kafscale.store.opening.views import StoreViews
from kafscale.traces import CONTEXTS_MAX_COUNT, Causes, Traces, contexts_in
from kafscale.wire import error_codes

CLOSE_SECONDS: Final = 2.0  # for the last spans, at the end of a broker
PARTITIONS_SHOWN_COUNT: Final = 16  # in the attribute of a log round

T = TypeVar("T")
OnDurable = Callable[[Sequence[WalEntry]], None]


@attrs.define(eq=False, repr=False)
class BrokerTraces:
    """The spans of one broker that have not ended, and what later ones need of those that have.

    `spans` are those of requests by what waits for its reply; `rounds` by the round they wait for. `flushable` has the
    last offsets of traced rounds that no flush has taken.
    """

    traces: Traces
    durability: str
    spans: WeakKeyDictionary[object, Span] = attrs.field(factory=WeakKeyDictionary, init=False)
    rounds: dict[Round, _RoundEnd] = attrs.field(factory=dict, init=False)
    flushable: WeakKeyDictionary[Partition, deque[tuple[int, SpanContext]]] = attrs.field(
        factory=WeakKeyDictionary, init=False
    )
    journal: object = attrs.field(default=None, init=False)
    _durable: Sequence[WalEntry] = attrs.field(default=(), init=False)  # the latest, while rounds are traced

    @classmethod
    def open(cls, endpoint: str, settings: Settings) -> BrokerTraces:
        resource = {"service.name": "kafscale", "service.instance.id": str(settings.broker_id)}
        return cls(Traces.open(endpoint, resource), settings.durability.value)

    async def aclose(self) -> None:
        """Send the last spans, for a limited time."""
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await trio.to_thread.run_sync(self.traces.close, abandon_on_cancel=True)

    # ---- what is put around a broker's parts ------------------------------------------------------------------

    def dispatcher(self, services: Services, apis: Sequence[ListedApi]) -> TracedDispatcher:
        """Make the dispatcher: `Broker.make_dispatcher`."""
        return TracedDispatcher(services, apis, traces=self)

    def views(self, views: StoreViews) -> StoreViews:
        tracer = self.traces.tracer
        return attrs.evolve(
            views,
            acknowledge=TracedStore(views.acknowledge, tracer),
            fetch=TracedStore(views.fetch, tracer),
            background=TracedStore(views.background, tracer),
        )

    def follow(self, services: Services) -> None:
        """Trace the journal and the flusher of these services, before anything is appended."""
        log = services.log
        self.journal = log.journal
        if isinstance(log.journal, Wal | S3Wal):
            log.journal.on_durable = partial(self._note_durable, log.journal.on_durable)
        if isinstance(log.journal, S3Wal):
            log.journal.around_put = self.within
        log.flusher.uploader = TracedUploader.around(log.flusher.uploader, self)
        self.traces.register(services.metrics)

    # ---- requests ---------------------------------------------------------------------------------------------

    def start(self, name: str, call: Call, *, age_seconds: float = 0.0, causes: Sequence[SpanContext] = ()) -> Span:
        """Start the span of a request that arrived `age_seconds` ago."""
        return Causes(causes).start(
            self.traces.tracer,
            name,
            kind=SpanKind.SERVER,
            start_time=time.time_ns() - int(age_seconds * 1e9),
            attributes={
                "messaging.system": "kafka",
                "messaging.client.id": call.client_id,
                "network.peer.address": call.peer.host,
                "network.peer.port": call.peer.port,
                "kafscale.api.version": call.version,
            },
        )

    def note_group(self, group: ProduceGroup, frame: memoryview) -> None:
        """Note one more Produce of a group, whose first one starts the span."""
        span, causes = self.spans.get(group), contexts_in(frame)
        if span is None:
            span = self.spans[group] = self.start("Produce", group.call, causes=causes)
            self.note_rounds([group.round], span)
        elif span.is_recording():
            for context in causes:
                span.add_link(context)

    def note_rounds(self, rounds: Iterable[Round], span: Span) -> None:
        """Note that a Produce waits for these rounds."""
        if not span.is_recording():
            return
        for journal_round in rounds:
            known = self.rounds.get(journal_round)
            if known is not None:
                known.span.add_link(span.get_span_context())
                continue
            of_round = Causes([span.get_span_context()]).start(
                self.traces.tracer, "log round", attributes={"kafscale.durability": self.durability}
            )
            self.rounds[journal_round] = end = _RoundEnd(self, journal_round, of_round)
            journal_round.tell(end)

    def sent(self, request: Request) -> None:
        span = self.spans.pop(request.pending or request, None)
        if span is not None:
            span.set_attribute("kafscale.requests", request.count)
            span.end()

    # ---- the log and flushes ----------------------------------------------------------------------------------

    def _note_durable(self, then: OnDurable, entries: Sequence[WalEntry]) -> None:
        if self.rounds:
            self._durable = entries
        then(entries)

    def end_round(self, end: _RoundEnd) -> None:
        """End the span of a round, and note what it made durable for later flushes."""
        del self.rounds[end.round]
        ends = {entry.owner: entry.last_offset for entry in self._durable if isinstance(entry, TailBatch)}
        self._durable = ()
        for partition, last_offset in ends.items():
            waiting = self.flushable.setdefault(partition, deque(maxlen=CONTEXTS_MAX_COUNT))
            waiting.append((last_offset, end.span.get_span_context()))
        end.span.set_attribute("kafscale.partitions", [str(partition) for partition in ends][:PARTITIONS_SHOWN_COUNT])
        if not end.round.done:
            end.span.set_status(Status(StatusCode.ERROR, str(end.round.failed or "no room in the write-ahead log")))
        end.span.end()

    @contextmanager
    def within(self, journal_round: Round) -> Iterator[None]:
        """Run a block as a part of a round, if that is traced: `S3Wal.around_put`."""
        end = self.rounds.get(journal_round)
        if end is None:
            yield
        else:
            with use_span(end.span):
                yield

    def causes_of(self, partition: Partition, end_offset: int) -> Sequence[SpanContext]:
        """Return the traced rounds with records of a partition below `end_offset`, oldest first."""
        if isinstance(self.journal, FlushOnAppend):
            ends = [self.rounds.get(journal_round) for journal_round in self.journal.taken(partition, end_offset)]
            return [end.span.get_span_context() for end in ends if end is not None]
        return [context for offset, context in self.flushable.get(partition, ()) if offset < end_offset]

    def flushed(self, partition: Partition, end_offset: int) -> None:
        waiting = self.flushable.get(partition, ())
        while waiting and waiting[0][0] < end_offset:
            waiting.popleft()


@attrs.define(eq=False, repr=False)
class _RoundEnd(Signal):
    """Ends the span of a round, which sets its signals when it is done or has failed."""

    traces: BrokerTraces
    round: Round
    span: Span

    def set(self) -> None:
        self.traces.end_round(self)


@attrs.define(eq=False, repr=False)
class TracedShortWay(ShortWay):
    traces: BrokerTraces = attrs.field(kw_only=True)

    def take(self, frame: memoryview) -> ProduceGroup | None:
        group = super().take(frame)
        if group is not None:
            self.traces.note_group(group, frame)
        return group


@attrs.define(eq=False, repr=False)
class TracedDispatcher(Dispatcher):
    """A dispatcher that traces requests. A Produce that is refused has the error as its status."""

    traces: BrokerTraces = attrs.field(kw_only=True)

    def short_way(self, peer: Peer) -> ShortWay:
        return TracedShortWay(self.services, peer, traces=self.traces)

    async def begin(self, request: Request, frame_lease: Lease | None) -> PendingProduce:
        age_seconds = time.perf_counter() - request.received_at
        causes = contexts_in(request.body)
        span = self.traces.start("Produce", request.call, age_seconds=age_seconds, causes=causes)
        with _ended_by_errors(span):
            pending = await super().begin(request, frame_lease)
        self.traces.spans[pending] = span
        return pending

    async def answer(self, request: Request) -> EncodedReply:
        pending = request.pending
        if pending is None:
            age_seconds = time.perf_counter() - request.received_at
            span = self.traces.spans[request] = self.traces.start(
                request.api.name, request.call, age_seconds=age_seconds
            )
        else:
            span = self.traces.spans[pending]
        if not span.is_recording():
            return await super().answer(request)
        if isinstance(pending, PendingProduce):
            self.traces.note_rounds(pending.rounds, span)
        with _ended_by_errors(span), use_span(span):
            reply = await super().answer(request)
        if pending is not None:
            _show_outcome(span, pending)
        return reply

    def sent(self, request: Request, now: float) -> None:
        super().sent(request, now)
        self.traces.sent(request)


def _show_outcome(span: Span, pending: Pending) -> None:
    topics = [topic for response in pending.responses for topic in response.responses]
    if topics:
        span.set_attribute("messaging.destination.name", topics[0].name)
    codes = {partition.error_code for topic in topics for partition in topic.partition_responses}
    refused = sorted(error_codes.name(code) for code in codes if code)
    if refused:
        span.set_status(Status(StatusCode.ERROR, ", ".join(refused)))


@contextmanager
def _ended_by_errors(span: Span) -> Iterator[None]:
    """End a span with the block if that raises, as when its client goes away."""
    try:
        yield
    except BaseException as exc:
        span.set_status(Status(StatusCode.ERROR, type(exc).__name__))
        span.end()
        raise


@attrs.define(eq=False, kw_only=True, repr=False)
class TracedUploader(Uploader):
    traces: BrokerTraces

    @classmethod
    def around(cls, uploader: Uploader, traces: BrokerTraces) -> TracedUploader:
        return cls(
            store=uploader.store,
            reader=uploader.reader,
            deadline_seconds=uploader.deadline_seconds,
            check_lead_first=uploader.check_lead_first,
            check_lead=uploader.check_lead,
            traces=traces,
        )

    async def flush(self, partition: Partition, plan: FlushPlan) -> None:
        attributes: Mapping[str, str | int] = {
            "messaging.destination.name": partition.topic,
            "messaging.destination.partition.id": str(partition.index),
            "kafscale.base_offset": plan.base_offset,
            "kafscale.end_offset": plan.end_offset,
            "kafscale.bytes": plan.size_bytes,
        }
        causes = Causes(self.traces.causes_of(partition, plan.end_offset))
        span = causes.start(self.traces.traces.tracer, "flush", attributes=attributes)
        with use_span(span, end_on_exit=True):
            await super().flush(partition, plan)
        self.traces.flushed(partition, plan.end_offset)


_VERBS: Final = {"get_range": "GET", "get_tail": "GET", "put_if_absent": "PUT", "put_if_match": "PUT"}


@attrs.define(eq=False, repr=False)
class TracedStore(ForwardingStore):
    """A store whose operations are spans within the current span, if that is recorded."""

    _tracer: Any

    def perform(self, operation: str, call: Callable[..., Awaitable[T]], *args: Any) -> Coroutine[Any, Any, T]:
        if not get_current_span().is_recording():
            return call(*args)  # type: ignore[return-value]  # as in ForwardingStore
        return self._traced(operation, call, args)

    async def _traced(self, operation: str, call: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
        verb = _VERBS.get(operation, operation.upper())
        with self._tracer.start_as_current_span(verb, kind=SpanKind.CLIENT) as span:
            span.set_attribute("kafscale.store.operation", operation)
            if isinstance(args[0], str):
                span.set_attribute("kafscale.object.key", args[0])
            result = await call(*args)
            if isinstance(result, ObjectPart):
                span.set_attribute("kafscale.bytes", len(result.data))
            elif verb == "PUT":
                span.set_attribute("kafscale.bytes", size_of(args[1]))
            return result
