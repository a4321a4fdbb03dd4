"""`kafscale top`: brokers, throughput by topic and lag by group, refreshed in a terminal, of any Kafka cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.options import (
    ADMIN,
    SECONDS,
    Bootstrap,
    ListOption,
    bootstrap_option,
    checked_security,
    json_option,
    number,
)
from kafscale.cli.output import show_described
from kafscale.errors import BrokerUnavailable, KafkaError

if TYPE_CHECKING:
    from kafscale.cli.top_view import Measurement
    from kafscale.client.watching import Watcher
    from kafscale.config import Address

APPENDED_BYTES = "kafscale_topic_appended_bytes_total"
RECONNECT_SECONDS = 1.0
ROWS_MAX_DEFAULT = 20


@attrs.frozen(kw_only=True)
class TopOptions:
    sort: str
    interval: float
    rows: int
    admin: tuple[Address, ...]


@click.command("top")
@click.option("--once", is_flag=True, help="Measure for one --interval, print the tables and end.")
@click.option("--interval", type=SECONDS, default="1s", help="Time between two measurements.  [default: 1s]")
@click.option(
    "--sort",
    type=click.Choice(["rate", "name", "total"]),
    default="rate",
    help="Order of topics and groups: by rate, by name, or by end offsets and lag.  [default: rate]",
)
@click.option(
    "--rows",
    type=number(1),
    default=ROWS_MAX_DEFAULT,
    help=f"Most rows of topics and of groups with --once; --json has all.  [default: {ROWS_MAX_DEFAULT}]",
)
@click.option(
    "--admin",
    type=ADMIN,
    cls=ListOption,
    help="The --admin-listen of each broker, for bytes per second; repeatable. Without it they are not shown.",
)
@json_option
@bootstrap_option
def command(bootstrap: Bootstrap, *, once: bool, as_json: bool, **options: Any) -> None:
    """Show brokers, throughput and lag, refreshed each second.

    Keys: q ends it, s changes the order. In a pipe, and with --json, it measures once.
    """
    import trio

    top = TopOptions(**options)
    security = checked_security(bootstrap)
    is_live = not (once or as_json) and sys.stdout.isatty() and sys.stdin.isatty()

    async def main() -> None:
        if is_live:
            await _live(bootstrap, security, top)
        else:
            await _once(bootstrap, security, top, as_json=as_json)

    trio.run(main)


async def _once(bootstrap: Bootstrap, security: Any, options: TopOptions, *, as_json: bool) -> None:
    import trio

    from kafscale.cli.top_view import GroupRow, TopicRow, WatchedBrokerRow, view_of
    from kafscale.client import connect
    from kafscale.client.watching import Watcher

    async with connect(bootstrap, security=security) as client:
        watcher, read_bytes = Watcher(client), _bytes_reader(options.admin)
        before = await _measure(watcher, read_bytes, all_groups=True)
        await trio.sleep(options.interval)
        view = view_of(before, await _measure(watcher, read_bytes, all_groups=True), options.sort)
    most = None if as_json else options.rows
    show_described(
        {},
        {
            "brokers": (WatchedBrokerRow, view.brokers),
            "topics": (TopicRow, view.topics[:most]),
            "groups": (GroupRow, view.groups[:most]),
        },
        as_json=as_json,
    )


async def _measure(watcher: Watcher, read_bytes: ReadBytes, *, all_groups: bool = False) -> Measurement:
    from kafscale.cli.top_view import Measurement

    sample = await watcher.sample(all_groups=all_groups)
    return Measurement(sample=sample, bytes=await read_bytes())


ReadBytes = Callable[[], Awaitable[dict[str, float]]]


def _bytes_reader(admins: tuple[Address, ...]) -> ReadBytes:
    """Return a function that sums the bytes appended to each topic over the brokers that answer."""

    async def nothing() -> dict[str, float]:
        return {}

    if not admins:
        return nothing
    from kafscale.supervisor.asking import BrokersClient, NoAdminAnswer

    client = BrokersClient()

    async def read() -> dict[str, float]:
        found: dict[str, float] = {}
        for address in admins:
            try:
                answer = await client.get(address, "/metrics", silence_max_seconds=RECONNECT_SECONDS)
            except NoAdminAnswer:
                continue
            for topic, value in bytes_of_topics(answer.text):
                found[topic] = found.get(topic, 0.0) + value
        return found

    return read


def bytes_of_topics(page: str) -> Iterator[tuple[str, float]]:
    """Read the bytes appended to each topic from a page of metrics."""
    start = f'{APPENDED_BYTES}{{topic="'
    for line in page.splitlines():
        if line.startswith(start):
            topic, _, value = line.removeprefix(start).partition('"}')
            yield topic, float(value.split()[0])


# ---- live -----------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Keys:
    """The effect of pressed keys. `changed` is set by each."""

    sort: str
    changed: Any
    is_over: bool = False

    def press(self, key: bytes) -> None:
        from kafscale.cli.top_view import SORTS

        if key in (b"q", b"Q", b""):
            self.is_over = True
        elif key in (b"s", b"S"):
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        self.changed.set()


async def _live(bootstrap: Bootstrap, security: Any, options: TopOptions) -> None:
    import trio
    from rich.console import Console
    from rich.live import Live

    keys = _Keys(options.sort, trio.Event())
    console = Console()
    with _single_keys(sys.stdin.fileno()), Live(console=console, screen=True, auto_refresh=False) as live:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read_keys, sys.stdin.fileno(), keys)
            screen = _Screen(live=live, keys=keys, options=options)
            await _watch(bootstrap, security, screen)
            nursery.cancel_scope.cancel()


@contextmanager
def _single_keys(descriptor: int) -> Iterator[None]:
    """Give keys as they are pressed, without showing them; Ctrl-C still interrupts."""
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def _read_keys(descriptor: int, keys: _Keys) -> None:
    import trio

    while not keys.is_over:
        await trio.lowlevel.wait_readable(descriptor)
        keys.press(os.read(descriptor, 1))


@attrs.define(eq=False, kw_only=True)
class _Screen:
    live: Any
    keys: _Keys
    options: TopOptions
    before: Measurement | None = None
    now: Measurement | None = None
    notice: str = "measuring…"

    def draw(self) -> None:
        from kafscale.cli.top_view import View, frame, view_of

        view = View(brokers=(), topics=(), groups=())
        if self.now is not None:
            view = view_of(self.before or self.now, self.now, self.keys.sort)
        size = self.live.console.size
        self.live.update(frame(view, sort=self.keys.sort, notice=self.notice, size=size), refresh=True)

    async def pause(self, seconds: float) -> None:
        """Wait until the next measurement; draw again for a key."""
        import trio

        with trio.move_on_after(seconds):
            while not self.keys.is_over:
                await self.keys.changed.wait()
                self.keys.changed = trio.Event()
                self.draw()


async def _watch(bootstrap: Bootstrap, security: Any, screen: _Screen) -> None:
    """Measure until q is pressed; after the first answer, wait for brokers that are gone."""
    from kafscale.client import connect
    from kafscale.client.watching import Watcher

    watcher: Watcher | None = None
    read_bytes = _bytes_reader(screen.options.admin)
    while not screen.keys.is_over:
        addresses = [*bootstrap, *(watcher.addresses if watcher is not None else ())]
        try:
            async with connect(list(dict.fromkeys(addresses)), security=security) as client:
                if watcher is None:
                    watcher = Watcher(client)
                watcher.client = client
                watcher.list_again()
                while not screen.keys.is_over:
                    moment = await _measure(watcher, read_bytes)
                    screen.before, screen.now, screen.notice = screen.now, moment, ""
                    screen.draw()
                    await screen.pause(screen.options.interval)
        except (BrokerUnavailable, KafkaError) as exc:
            if screen.now is None:
                raise
            screen.notice = f"waiting for a broker: {exc}"
            screen.draw()
            await screen.pause(RECONNECT_SECONDS)
