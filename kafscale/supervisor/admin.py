"""The admin server of all brokers of this machine, whose own ones listen on the loopback.

`/healthz` tells that the supervisor runs, `/readyz` that all brokers serve, or why not. `/metrics` has each of
their samples with `broker="ID"`; `/flush` flushes all. A request's token is passed on: brokers ask for it as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING

import attrs
import trio

from kafscale.concurrency.nurseries import ungrouped
from kafscale.config import Address
from kafscale.metrics import Metrics, PageFormat
from kafscale.metrics.process import register_process
from kafscale.server.http.answers import JSON_LINES, AdminPages, FlushProgress, unavailable
from kafscale.server.http.loop import HttpExchange, Page, text_page
from kafscale.supervisor.child import Child

if TYPE_CHECKING:
    from kafscale.supervisor.asking import AdminAnswer, BrokersClient, Headers, Lines

READINESS_SECONDS = 1.0  # for a broker to say that it serves; a probe of Kubernetes waits as long by default
LABEL = "broker"
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_NAME = re.compile(r"[a-zA-Z_:][\w:]*")


@attrs.define(eq=False, repr=False)
class SupervisorAdmin(AdminPages):
    """Serves requests about `children`, the brokers by id."""

    children: Sequence[Child]
    _metrics: Metrics = attrs.field(factory=Metrics, init=False)
    _client: BrokersClient | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        AdminPages.__attrs_post_init__(self)
        register_process(self._metrics)
        self._metrics.callback(
            "kafscale_process_up",
            "1 if the broker's process runs and has been ready, else 0.",
            LABEL,
            samples=lambda: [((str(child.broker_id),), float(child.reached is not None)) for child in self.children],
        )
        self._metrics.callback(
            "kafscale_process_restarts_total",
            "Times that the broker's process was started again.",
            LABEL,
            samples=lambda: [((str(child.broker_id),), child.restarts_count) for child in self.children],
            kind="counter",
        )

    async def not_ready(self) -> str:
        answers = await self._ask_all("/readyz", silence_max_seconds=READINESS_SECONDS)
        return ", ".join(
            f"broker {broker_id}: {answer.text}"
            for broker_id, answer in answers.items()
            if answer.status != HTTPStatus.OK
        )

    async def metrics_page(self, exchange: HttpExchange, form: PageFormat) -> str:
        answers = await self._ask_all("/metrics", [*_authorization(exchange), ("accept", form.value)])
        pages: dict[int | None, str] = {
            broker_id: answer.text for broker_id, answer in answers.items() if answer.status == HTTPStatus.OK
        }
        pages[None] = self._metrics.expose(form)
        return await trio.to_thread.run_sync(merged, pages) + form.end

    async def answer_allowed_flush(self, exchange: HttpExchange) -> None:
        brokers = {child.broker_id: child.reached.admin for child in self.children if child.reached is not None}
        await _flush_all(self._brokers_client(), brokers, exchange)

    async def _ask_all(
        self, path: str, headers: Headers = (), *, silence_max_seconds: float | None = None
    ) -> dict[int, AdminAnswer]:
        from kafscale.supervisor.asking import SILENCE_MAX_SECONDS, AdminAnswer, NoAdminAnswer

        client = self._brokers_client()
        silence = SILENCE_MAX_SECONDS if silence_max_seconds is None else silence_max_seconds
        answers = {child.broker_id: AdminAnswer(HTTPStatus.SERVICE_UNAVAILABLE, "starting") for child in self.children}

        async def ask(child: Child) -> None:
            if child.reached is None:
                return
            try:
                answer = await client.get(child.reached.admin, path, headers, silence_max_seconds=silence)
                answers[child.broker_id] = attrs.evolve(answer, text=answer.text.rstrip("\n"))
            except NoAdminAnswer as exc:
                answers[child.broker_id] = AdminAnswer(HTTPStatus.SERVICE_UNAVAILABLE, str(exc))

        async with trio.open_nursery() as nursery:
            for child in self.children:
                nursery.start_soon(ask, child)
        return answers

    def _brokers_client(self) -> BrokersClient:
        if self._client is None:
            from kafscale.supervisor.asking import BrokersClient

            self._client = BrokersClient()
        return self._client


def _authorization(exchange: HttpExchange) -> Headers:
    values = (value for name, value in exchange.request.headers if name == b"authorization")
    return [("authorization", value.decode("latin-1")) for value in values]


# ---- metrics ----------------------------------------------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class _Family:
    header: dict[str, str] = attrs.field(factory=dict)
    samples: list[str] = attrs.field(factory=list)


def merged(pages: Mapping[int | None, str]) -> str:
    """Merge pages of metrics by family and broker id; samples of the supervisor's own page, None, get no label.

    An existing label `broker` becomes `exported_broker`.
    """
    families: dict[str, _Family] = {}
    for broker_id, page in pages.items():
        family = _Family()
        for line in page.split("\n"):  # not splitlines: labels may hold other characters that end a line for Python
            if line.startswith(("# HELP ", "# TYPE ", "# UNIT ")):
                _, kind, name, *_ = line.split(" ", 3)
                family = families.setdefault(name, _Family())
                family.header.setdefault(kind, line)
            elif line and not line.startswith("#"):
                family.samples.append(line if broker_id is None else _labelled(line, broker_id))
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


# ---- flushes ----------------------------------------------------------------------------------------------------


async def _flush_all(client: BrokersClient, brokers: Mapping[int, Address], exchange: HttpExchange) -> None:
    """Send the sum of all brokers' progress. Topics that only some know are new; a death leaves it incomplete."""
    from kafscale.supervisor.asking import NoAdminAnswer

    target = f"/flush?{exchange.query}" if exchange.query else "/flush"
    async with AsyncExitStack() as stack:
        answers: list[Lines] = []
        refusals: list[Page] = []
        for broker_id, address in brokers.items():
            try:
                posting = client.posted(address, target, _authorization(exchange))
                status, lines = await stack.enter_async_context(posting)
                if status == HTTPStatus.OK:
                    answers.append(lines)
                else:
                    refusals.append(text_page(HTTPStatus(status), "\n".join([line async for line in lines])))
            except NoAdminAnswer as exc:
                refusals.append(unavailable(f"broker {broker_id}: {exc}"))
        refused = [page for page in refusals if page.status is not HTTPStatus.NOT_FOUND or not answers]
        if refused:
            await exchange.send_page(refused[0])
        else:
            await _follow(answers, exchange)


async def _follow(answers: Sequence[Lines], exchange: HttpExchange) -> None:
    """Send the sum of the progress whenever a broker sends its own, until all are done."""
    from kafscale.supervisor.asking import NoAdminAnswer

    told: list[FlushProgress | None] = [None] * len(answers)
    heard = trio.Event()

    async def hear(number: int) -> None:
        nonlocal heard
        async for line in answers[number]:
            told[number] = FlushProgress.parse(line)
            heard.set()
        last = told[number]
        if last is None or not last.done:
            raise NoAdminAnswer

    await exchange.begin(JSON_LINES)
    try:
        with ungrouped():
            async with trio.open_nursery() as nursery:
                for number in range(len(answers)):
                    nursery.start_soon(hear, number)
                while not (told and all(progress is not None and progress.done for progress in told)):
                    await heard.wait()
                    heard = trio.Event()
                    known = [progress for progress in told if progress is not None]
                    if len(known) == len(told):
                        await exchange.send(_sum(known).encode())
    except (NoAdminAnswer, ValueError) as exc:
        raise trio.BrokenResourceError("a broker has ended before its flush was done") from exc
    await exchange.end()


def _sum(told: Sequence[FlushProgress]) -> FlushProgress:
    return FlushProgress(
        done=all(progress.done for progress in told),
        segments=sum(progress.segments for progress in told),
        bytes=sum(progress.bytes for progress in told),
        wanted_bytes=sum(progress.wanted_bytes for progress in told),
        seconds=max(progress.seconds for progress in told),
    )
