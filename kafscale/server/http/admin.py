"""The admin endpoint: `/healthz` (the process runs), `/readyz` (it serves), `/metrics` (of Prometheus).

POST /flush?topic=NAME    flushes these topics (`topic` may repeat) or all to the bucket, and the metadata;
                          answers with a line of JSON each second, `FlushProgress`, the last one when it is done
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import attrs
import trio

from kafscale.concurrency.nurseries import ungrouped
from kafscale.concurrency.turns import in_turns
from kafscale.escaping import bounded, escaped
from kafscale.log.flush.flusher import FlushReport
from kafscale.log.log import Log
from kafscale.metrics import Metrics, PageFormat
from kafscale.server.http.answers import FLUSH_PROGRESS_SECONDS, JSON_LINES, AdminPages, FlushProgress
from kafscale.server.http.loop import HttpExchange, text_page

NAME_MAX_COUNT = 300  # characters of a topic's name that is quoted; those that can be have 249


@attrs.define(eq=False, repr=False)
class AdminServer(AdminPages):
    """The admin server of a broker. `reason` returns why it does not serve, or None; `log` is called only then.

    `settle_metadata` waits until the bucket has all metadata.
    """

    metrics: Metrics
    reason: Callable[[], str | None]
    log: Callable[[], Log]
    settle_metadata: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    _exposition: Exposition = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        AdminPages.__attrs_post_init__(self)
        self._exposition = Exposition(self.metrics)

    async def not_ready(self) -> str:
        return self.reason() or ""

    async def metrics_page(self, exchange: HttpExchange, form: PageFormat) -> bytes:
        return await self._exposition.page(form)

    async def answer_allowed_flush(self, exchange: HttpExchange) -> None:
        log, topics = self.log(), exchange.arguments("topic")
        unknown = next((topic for topic in topics if topic not in log.by_name), None)
        if unknown is None:
            await self._flush_and_tell(log, frozenset(topics) or None, exchange)
        else:
            shown = escaped(bounded(unknown, NAME_MAX_COUNT))
            await exchange.send_page(text_page(HTTPStatus.NOT_FOUND, f"there is no topic '{shown}'"))

    async def _flush_and_tell(self, log: Log, topics: frozenset[str] | None, exchange: HttpExchange) -> None:
        """Flush, and send progress. A flush goes on if the client goes away."""
        report = FlushReport(topics=topics)
        began = trio.current_time()
        done = trio.Event()

        async def flush() -> None:
            await log.flusher.flush_all(report)
            await self.settle_metadata()
            done.set()

        async def tell() -> None:
            line = FlushProgress(
                done=done.is_set(),
                segments=report.segments_count,
                bytes=report.flushed_bytes,
                wanted_bytes=report.wanted_bytes,
                seconds=round(trio.current_time() - began, 3),
            )
            await exchange.send(line.encode())

        await exchange.begin(JSON_LINES)
        with ungrouped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flush)
                while not done.is_set():
                    with trio.move_on_after(FLUSH_PROGRESS_SECONDS):
                        await done.wait()
                    await tell()
        await exchange.end()


REST_FACTOR: Final = 4  # the pause after a page was made, as a multiple of the time that it took


@attrs.define(eq=False, repr=False)
class Exposition:
    """Makes pages of metrics, in turns between which other tasks run.

    One page serves all requests for its format that wait for it, and is never older than their arrival. Pages take at
    most a fifth of the event loop.
    """

    metrics: Metrics
    _pages: dict[PageFormat, bytes] = attrs.field(factory=dict, init=False)
    _begun_counts: Counter[PageFormat] = attrs.field(factory=Counter, init=False)  # of pages
    _rests_until: float = attrs.field(default=-math.inf, init=False)
    _making: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def page(self, form: PageFormat = PageFormat.TEXT) -> bytes:
        begun_before_count = self._begun_counts[form]
        async with self._making:  # first come, first served: each hands on to the next after a turn of the loop
            if self._begun_counts[form] == begun_before_count:
                await trio.sleep_until(self._rests_until)
                await self._make(form)
            return self._pages[form]

    async def _make(self, form: PageFormat) -> None:
        self._begun_counts[form] += 1
        began = trio.current_time()
        page = bytearray()
        async for line in in_turns(self.metrics.lines(form)):
            if line is not None:
                page += line.encode()
                page += b"\n"
        self._pages[form] = bytes(page) + form.end.encode()
        ended = trio.current_time()
        self._rests_until = ended + REST_FACTOR * (ended - began)
