"""The admin server of all brokers of this machine: theirs listen on the loopback, for this one alone.

    /healthz   the supervisor runs
    /readyz    all brokers serve, or which do not, and why
    /metrics   those of all brokers, each sample with `broker="ID"`, and those of the supervisor
    /flush     what it is on a broker's own, for all of them

Whoever asks brings the token, if there is one, to this server; it is handed on, since they ask for it as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import attrs
import trio

from kafscale.metrics import Metrics
from kafscale.server.http.access import AdminAccess
from kafscale.server.http.answers import EXPOSITION, FLUSHES_MAX_COUNT, unavailable
from kafscale.server.http.loop import Exchange, HttpServer, Page, Route, page_route, text_page
from kafscale.supervisor.asking import SILENCE_MAX_SECONDS, Headers, NoAnswer, asked
from kafscale.supervisor.child import Child
from kafscale.supervisor.exposition import LABEL, merged
from kafscale.supervisor.flushes import flush_all

READINESS_SECONDS = 1.0  # for a broker to say that it serves; probes of Kubernetes wait for so long by default


@attrs.define(eq=False, repr=False)
class SupervisorAdmin:
    """`children` are the brokers, in the order of their ids."""

    children: Sequence[Child]
    access: AdminAccess
    _metrics: Metrics = attrs.field(factory=Metrics, init=False)
    _flushes_count: int = attrs.field(default=0, init=False)
    _server: HttpServer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        routes = [
            page_route("/healthz", lambda: text_page(HTTPStatus.OK, "ok"), is_open=True),
            Route("/readyz", self._answer_readiness, is_open=True),
            Route("/metrics", self._answer_metrics),
            Route("/flush", self._answer_flush, methods=("POST",), keeps_place=True),
        ]
        tls = self.access.tls
        context = None if tls is None else lambda: tls.admin_context
        self._server = HttpServer(
            "the admin server",
            routes,
            is_known=self.access.is_known,
            refusal=self.access.refusal,
            context=context,
        )
        self._metrics.callback(
            "kafscale_process_up",
            "Whether the broker's process runs and has been ready.",
            LABEL,
            samples=lambda: [((str(each.broker_id),), float(each.reached is not None)) for each in self.children],
        )
        self._metrics.callback(
            "kafscale_process_restarts_total",
            "Times that the broker's process was started again.",
            LABEL,
            samples=lambda: [((str(each.broker_id),), each.restarts_count) for each in self.children],
            kind="counter",
        )

    async def accept(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve whoever connects, until cancelled."""
        await self._server.accept(listeners)

    async def _answer_readiness(self, exchange: Exchange) -> None:
        reasons = await self._not_ready()
        page = unavailable(reasons) if reasons else text_page(HTTPStatus.OK, "ready")
        await exchange.send_page(page)

    async def _answer_metrics(self, exchange: Exchange) -> None:
        found = await self._ask_all("/metrics", _authorization(exchange))
        pages = {broker_id: each.text for broker_id, each in found.items() if each.status == HTTPStatus.OK}
        page = await trio.to_thread.run_sync(merged, pages)
        await exchange.send_page(Page(HTTPStatus.OK, EXPOSITION, page + self._metrics.expose()))

    async def _answer_flush(self, exchange: Exchange) -> None:
        self._flushes_count += 1
        try:
            refused = self.access.refused_change
            if refused is not None:
                await exchange.send_page(text_page(HTTPStatus.FORBIDDEN, refused))
            elif self._flushes_count > FLUSHES_MAX_COUNT:
                await exchange.send_page(unavailable(f"{FLUSHES_MAX_COUNT} flushes are under way already"))
            elif reasons := await self._not_ready():
                await exchange.send_page(unavailable(reasons))
            else:
                brokers = {each.broker_id: each.reached.admin for each in self.children if each.reached is not None}
                await flush_all(brokers, exchange, _authorization(exchange))
        finally:
            self._flushes_count -= 1

    async def _not_ready(self) -> str:
        """Return which brokers do not serve and why; nothing if all do."""
        found = await self._ask_all("/readyz", silence_max_seconds=READINESS_SECONDS)
        reasons = [f"broker {broker_id}: {each.text}" for broker_id, each in found.items() if each.status != 200]
        return ", ".join(reasons)

    async def _ask_all(
        self, path: str, headers: Headers = (), *, silence_max_seconds: float = SILENCE_MAX_SECONDS
    ) -> dict[int, _Found]:
        """Ask all brokers at once."""
        found = {each.broker_id: _Found(HTTPStatus.SERVICE_UNAVAILABLE, "starting") for each in self.children}

        async def ask(child: Child) -> None:
            if child.reached is None:
                return
            try:
                async with asked(
                    child.reached.admin, "GET", path, headers, silence_max_seconds=silence_max_seconds
                ) as answer:
                    found[child.broker_id] = _Found(answer.status, (await answer.read()).rstrip("\n"))
            except NoAnswer as exc:
                found[child.broker_id] = _Found(HTTPStatus.SERVICE_UNAVAILABLE, str(exc))

        async with trio.open_nursery() as nursery:
            for each in self.children:
                nursery.start_soon(ask, each)
        return found


@attrs.frozen
class _Found:
    status: int
    text: str


def _authorization(exchange: Exchange) -> Headers:
    """Return the token that was brought, for the brokers, which have it checked by its file as this server has."""
    found = (value for name, value in exchange.request.headers if name == b"authorization")
    return [("authorization", value.decode("latin-1")) for value in found]
