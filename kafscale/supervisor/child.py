"""One broker of a supervisor: it is started, and when it dies started again, on its own log.

Its output goes to the supervisor's log, each line with the broker's id.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs
import trio

from kafscale.backoff import Backoff
from kafscale.concurrency.process import Process, lines
from kafscale.config import Address
from kafscale.supervisor.plans import BrokerPlan

logger = logging.getLogger(__name__)

REFUSED_CODES = (1, 2)  # `kafscale.cli.main`: it can't start, a setting is wrong
OUTPUT_SECONDS = 1.0  # for the last lines of one that has ended: a process that it started may hold them open
LONG_LIFE_SECONDS = 10.0  # a broker that lived longer did not die of its start, which takes one or two
BACKOFF = Backoff(0.1, 10.0)  # Kafka: reconnect.backoff.ms, 50 ms; a start takes more than either
_READY = re.compile(r"kafscale is ready: kafka (\S+) admin (\S+)((?: \S+)*)")


@attrs.frozen(kw_only=True)
class Reached:
    listeners: Sequence[Address]
    admin: Address

    @classmethod
    def parse(cls, line: str) -> Reached | None:
        match = _READY.fullmatch(line)
        if match is None:
            return None
        listeners = [Address.parse(address) for address in (match[1], *match[3].split())]
        return cls(listeners=listeners, admin=Address.parse(match[2]))


@attrs.define(eq=False, repr=False)
class Child:
    """One broker. `reached` is None while it is not ready; `launch` starts its process."""

    plan: BrokerPlan
    launch: Callable[[BrokerPlan], Process]
    reached: Reached | None = attrs.field(default=None, init=False)
    restarts_count: int = attrs.field(default=0, init=False)
    was_ready: trio.Event = attrs.field(factory=trio.Event, init=False)
    _early_deaths_count: int = attrs.field(default=0, init=False)  # one after the other
    _running: Process | None = attrs.field(default=None, init=False)
    _stopping: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def broker_id(self) -> int:
        return self.plan.broker_id

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def stop(self) -> None:
        self._stopping.set()
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: signal.Signals) -> None:
        if self._running is not None:
            self._running.send_signal(number)

    async def run(self) -> int:
        """Keep it running until `stop`, or until it refuses its first start. Returns its last exit code."""
        while True:
            began = trio.current_time()
            code = await self._live()
            if self._stopping.is_set():
                return code
            if code in REFUSED_CODES and not self.was_ready.is_set():
                return code
            pause = self._pause_seconds(trio.current_time() - began)
            logger.error("broker %d has ended, %s; starting it again%s", self.broker_id, _ending(code), _in(pause))
            with trio.move_on_after(pause):
                await self._stopping.wait()
            if self._stopping.is_set():
                return 0
            self.restarts_count += 1

    def _pause_seconds(self, lived_seconds: float) -> float:
        """Return the pause after a life: none after a long one, nor after the first death."""
        if lived_seconds >= LONG_LIFE_SECONDS:
            self._early_deaths_count = 0
        earlier_count, self._early_deaths_count = self._early_deaths_count, self._early_deaths_count + 1
        return BACKOFF.seconds(earlier_count - 1) if earlier_count else 0.0

    async def _live(self) -> int:
        """Run its process once. Returns the exit code."""
        try:
            process = self._running = self.launch(self.plan)
        except OSError as exc:
            logger.error("no process for broker %d can be made: %s", self.broker_id, exc)
            return REFUSED_CODES[0]
        try:
            async with trio.open_nursery() as readers:
                readers.start_soon(self._read_output, process)
                readers.start_soon(self._read_errors, process)
                code = await process.wait()
                readers.cancel_scope.deadline = trio.current_time() + OUTPUT_SECONDS
            return code
        finally:
            self._running = self.reached = None
            await process.aclose()

    async def _read_output(self, process: Process) -> None:
        async for line in lines(process.output):
            reached = Reached.parse(line)
            if reached is None:
                self._pass_on(line)
                continue
            self.reached = reached
            self.plan = self.plan.on_ports(reached.listeners)
            self.was_ready.set()
            logger.info("broker %d is ready, as process %d", self.broker_id, process.pid)

    async def _read_errors(self, process: Process) -> None:
        async for line in lines(process.errors):
            self._pass_on(line)

    def _pass_on(self, line: str) -> None:
        """Write a line to our log with its id; JSON stays JSON. It is lost if our log takes no more."""
        if line.startswith("{"):
            text = f'{{"broker": {self.broker_id}, {line[1:]}'
        else:
            text = f"broker {self.broker_id}: {line}"
        with suppress(OSError):  # as where its disk is full: brokers go on all the same
            print(text, file=sys.stderr, flush=True)


def _ending(code: int) -> str:
    return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"


def _in(seconds: float) -> str:
    return f" in {seconds:g} s" if seconds else ""
