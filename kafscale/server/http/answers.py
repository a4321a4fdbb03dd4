"""Common parts of the admin servers of brokers and supervisors: their pages, and the progress of a flush."""

from __future__ import annotations

import builtins
import json
from http import HTTPStatus

import attrs

from kafscale.metrics import PageFormat
from kafscale.server.http.access import AdminAccess
from kafscale.server.http.loop import HttpExchange, HttpServer, Page, Route, text_page

JSON_LINES = "application/x-ndjson"
FLUSHES_MAX_COUNT = 8  # at once; each gets a line every second
FLUSH_PROGRESS_SECONDS = 1.0


@attrs.frozen(kw_only=True)
class FlushProgress:
    """A line of the answer to `POST /flush`. `wanted_bytes` are the unflushed bytes when it began."""

    done: bool
    segments: int
    bytes: int
    wanted_bytes: int
    seconds: float

    def encode(self) -> builtins.bytes:
        return json.dumps(attrs.asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: str) -> FlushProgress:
        try:
            return cls(**json.loads(line))
        except TypeError as exc:
            raise ValueError(f"this is not the progress of a flush: {line}") from exc


def unavailable(reason: str) -> Page:
    return text_page(HTTPStatus.SERVICE_UNAVAILABLE, reason)


@attrs.define(eq=False, repr=False)
class AdminPages:
    """An admin server. A broker's and a supervisor's tell what differs."""

    access: AdminAccess = attrs.field(factory=AdminAccess, kw_only=True)
    server: HttpServer = attrs.field(init=False)
    _flushes_count: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        tls = self.access.tls
        routes = [
            Route("/healthz", self._answer_health, is_open=True),
            Route("/readyz", self._answer_readiness, is_open=True),
            Route("/metrics", self._answer_metrics),
            Route("/flush", self._answer_flush, methods=("POST",), keeps_place=True),
        ]
        self.server = HttpServer(
            "the admin server",
            routes,
            is_known=self.access.is_known,
            refusal=self.access.refusal,
            context=None if tls is None else lambda: tls.admin_context,
        )

    async def not_ready(self) -> str:
        """Return why clients are not served; empty if they are."""
        raise NotImplementedError

    async def metrics_page(self, exchange: HttpExchange, form: PageFormat) -> str | bytes:
        raise NotImplementedError

    async def answer_allowed_flush(self, exchange: HttpExchange) -> None:
        raise NotImplementedError

    async def _answer_health(self, exchange: HttpExchange) -> None:
        await exchange.send_page(text_page(HTTPStatus.OK, "ok"))

    async def _answer_readiness(self, exchange: HttpExchange) -> None:
        reason = await self.not_ready()
        await exchange.send_page(unavailable(reason) if reason else text_page(HTTPStatus.OK, "ready"))

    async def _answer_metrics(self, exchange: HttpExchange) -> None:
        form = PageFormat.accepted(exchange.header(b"accept"))
        page = await self.metrics_page(exchange, form)
        await exchange.send_page(Page(HTTPStatus.OK, form.value, page, (("vary", "Accept"),)))

    async def _answer_flush(self, exchange: HttpExchange) -> None:
        self._flushes_count += 1
        try:
            if refused := self.access.refused_change:
                await exchange.send_page(text_page(HTTPStatus.FORBIDDEN, refused))
            elif self._flushes_count > FLUSHES_MAX_COUNT:  # before `not_ready`, which asks a supervisor's brokers
                await exchange.send_page(unavailable(f"{FLUSHES_MAX_COUNT} flushes are under way already"))
            elif reason := await self.not_ready():
                await exchange.send_page(unavailable(reason))
            else:
                await self.answer_allowed_flush(exchange)
        finally:
            self._flushes_count -= 1
