"""One flush of all brokers: each is asked for its own, and what they say of how far they are is added up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus

import trio

from kafscale.concurrency.nurseries import ungrouped
from kafscale.config import Address
from kafscale.server.http.answers import JSON_LINES, FlushProgress, unavailable
from kafscale.server.http.loop import Exchange, Page, text_page
from kafscale.supervisor.asking import Answer, Headers, NoAnswer, asked


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
