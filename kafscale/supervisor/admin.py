"""The admin server of all brokers of this machine: theirs listen on the loopback, for this one alone.

    /healthz   the supervisor runs
    /readyz    all brokers serve, or which do not, and why
    /metrics   those of all brokers, each sample with `broker="ID"`, and those of the supervisor
    /flush     what it is on a broker's own, for all of them

Whoever asks brings the token, if there is one, to this server; it is handed on, since they ask for it as well.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus

import attrs
import trio

from kafscale.concurrency.nurseries import ungrouped
from kafscale.config import Address
from kafscale.metrics import Metrics
from kafscale.server.http.access import AdminAccess
from kafscale.server.http.answers import EXPOSITION, FLUSHES_MAX_COUNT, JSON_LINES, FlushProgress, unavailable
from kafscale.server.http.loop import Exchange, HttpServer, Page, Route, page_route, text_page
from kafscale.supervisor.asking import SILENCE_MAX_SECONDS, Answer, Headers, NoAnswer, asked
from kafscale.supervisor.child import Child

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


LABEL = "broker"
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_NAME = re.compile(r"[a-zA-Z_:][\w:]*")


@attrs.define(eq=False, repr=False)
class _Family:
    header: dict[str, str] = attrs.field(factory=dict)
    samples: list[str] = attrs.field(factory=list)


def merged(pages: Mapping[int, str]) -> str:
    """Merge the pages, which are given by broker id."""
    families: dict[str, _Family] = {}
    for broker_id, page in pages.items():
        family = _Family()
        for line in page.split("\n"):  # not at what else ends a line for Python: labels may have it in them
            if line.startswith(("# HELP ", "# TYPE ")):
                _, kind, name, *_ = line.split(" ", 3)
                family = families.setdefault(name, _Family())
                family.header.setdefault(kind, line)
            elif line and not line.startswith("#"):
                family.samples.append(_labelled(line, broker_id))
    written = (line for family in families.values() for line in (*family.header.values(), *family.samples))
    return "".join(f"{line}\n" for line in written)


def _labelled(sample: str, broker_id: int) -> str:
    match = _NAME.match(sample)
    name = match[0] if match else ""
    rest = sample[len(name) :]
    if not rest.startswith("{"):
        return f'{name}{{{LABEL}="{broker_id}"}}{rest}'
    if f'{LABEL}="' in rest:
        rest = _LABEL.sub(lambda found: f"exported_{found[0]}" if found[1] == LABEL else found[0], rest)
    return f'{name}{{{LABEL}="{broker_id}",{rest[1:]}'


async def flush_all(brokers: Mapping[int, Address], exchange: Exchange, headers: Headers) -> None:
    """Ask each broker, by its id and its admin server, for what the exchange asks for, and tell how far all are.

    A topic that one of them does not know, as it is new, is another one's. Who dies meanwhile leaves the answer without
    its end, as it does by itself.
    """
    target = f"/flush?{exchange.query}" if exchange.query else "/flush"
    async with AsyncExitStack() as stack:
        answers: list[Answer] = []
        refusals: list[Page] = []
        for broker_id, address in brokers.items():
            try:
                answer = await stack.enter_async_context(asked(address, "POST", target, headers))
                if answer.status == HTTPStatus.OK:
                    answers.append(answer)
                else:
                    refusals.append(text_page(HTTPStatus(answer.status), (await answer.read()).strip()))
            except NoAnswer as exc:
                refusals.append(unavailable(f"broker {broker_id}: {exc}"))
        refused = [each for each in refusals if each.status is not HTTPStatus.NOT_FOUND or not answers]
        if refused:
            await exchange.send_page(refused[0])
        else:
            await _follow(answers, exchange)


async def _follow(answers: Sequence[Answer], exchange: Exchange) -> None:
    told: list[FlushProgress | None] = [None] * len(answers)
    heard = trio.Event()

    async def hear(number: int) -> None:
        nonlocal heard
        async for line in _lines(answers[number]):
            told[number] = FlushProgress.parse(line)
            heard.set()
        last = told[number]
        if last is None or not last.done:
            raise trio.BrokenResourceError("a broker has ended before its flush was done")

    await exchange.begin(JSON_LINES)
    try:
        with ungrouped():
            async with trio.open_nursery() as nursery:
                for number in range(len(answers)):
                    nursery.start_soon(hear, number)
                while not (told and all(each is not None and each.done for each in told)):
                    await heard.wait()
                    heard = trio.Event()
                    known = [each for each in told if each is not None]
                    if len(known) == len(told):
                        await exchange.send(_sum(known).encode())
    except (NoAnswer, ValueError) as exc:
        raise trio.BrokenResourceError("a broker has ended before its flush was done") from exc
    await exchange.end()


async def _lines(answer: Answer) -> AsyncIterator[str]:
    pending = b""
    async for part in answer.parts():
        *whole, pending = (pending + part).split(b"\n")
        for line in whole:
            yield line.decode()


def _sum(told: Sequence[FlushProgress]) -> FlushProgress:
    return FlushProgress(
        done=all(each.done for each in told),
        segments=sum(each.segments for each in told),
        bytes=sum(each.bytes for each in told),
        wanted_bytes=sum(each.wanted_bytes for each in told),
        seconds=max(each.seconds for each in told),
    )
