"""A broker process under requests that are nearly right:  python -m tests.hostile.fuzz

    --seconds N     how long, 60 by default
    --seed N        which requests; printed, any by default

`processes.fuzz_frames` makes the requests; several connections send them, some of them many at once, while a
well-behaved client produces and fetches. Found, each with the frames that the connection had sent, is

    an end          the broker process has ended
    a traceback     in its log: a request has met an unhandled error
    silence         a connection that got neither an answer nor an end
    a standstill    the client beside was not served for seconds
    memory          the broker has grown by more than was allowed

Ends with 1 if anything was found.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from random import Random, SystemRandom

import attrs
import trio

from kafscale.api.table import every_api
from kafscale.client import admin
from kafscale.client.admin import TopicToCreate
from kafscale.client.client import connect
from kafscale.errors import BrokerUnavailable
from kafscale.wire.frames import FrameReader
from kafscale.wire.messages.groups import JoinGroupRequest, SyncGroupRequest
from kafscale.wire.messages.records import FetchRequest, ProduceRequest
from tests.devtools.processes.process import BrokerProcess, broker_process
from tests.hostile.fuzz_frames import SIZE_BYTES, TOPIC, Frame, make_frame
from tests.hostile.hostile import STANDSTILL_SECONDS, bystander, raw_connection

CONNECTIONS_COUNT = 4
FRAMES_MAX_COUNT = 20  # of one connection
MUTATED_SHARES = (0.0, 0.05, 0.5)  # of one connection's frames: it ends with the first that can't be read
SILENCE_SECONDS = 15.0  # neither an answer nor the connection's end
GROWN_MAX_MIB = 400.0
ANSWER_MAX_BYTES = 1 << 30
SHOWN_LINES = 15
MAY_WAIT = (FetchRequest, JoinGroupRequest, SyncGroupRequest)  # for data, or for other members, as long as they say
MAY_BE_SILENT = (*MAY_WAIT, ProduceRequest)  # with acks=0 there is no answer


def may_be_silent(frame: Frame) -> bool:
    """Tell whether a broker need not answer a frame, by the API key that it has: a mutation may have changed it."""
    key = frame.data[SIZE_BYTES : SIZE_BYTES + 2]
    return any(api.key.to_bytes(2) == key and issubclass(api.request, MAY_BE_SILENT) for api in every_api())


@attrs.define(eq=False)
class Findings:
    """Requests sent, by API, and violations found."""

    sent: Counter[str] = attrs.field(factory=Counter)
    answered_count: int = 0
    closed_count: int = 0
    problems: list[str] = attrs.field(factory=list)


async def fuzz(broker: BrokerProcess, *, seed: int, seconds: float) -> Findings:
    """Send requests to a broker that runs, and say what came of it. The topic is created first."""
    findings = Findings()
    async with connect(broker.kafka) as client:
        await admin.create_topic(client, TopicToCreate(name=TOPIC, partition_count=2))
        topic_id = (await client.topic(TOPIC)).topic_id
    async with bystander(broker) as seen:
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                for number in range(CONNECTIONS_COUNT):
                    nursery.start_soon(_Attacker(broker, Random(f"{seed} {number}"), topic_id, findings).run)
    if seen.failures:
        findings.problems.append(f"the client beside failed: {seen.failures[0]}")
    if seen.worst_seconds > STANDSTILL_SECONDS:
        findings.problems.append(f"the client beside was not served for {seen.worst_seconds:.1f} s")
    if seen.grown_mib > GROWN_MAX_MIB:
        findings.problems.append(f"the broker has grown by {seen.grown_mib:.0f} MiB")
    return findings


@attrs.define(eq=False)
class _Attacker:
    """One connection after the other."""

    broker: BrokerProcess
    random: Random
    topic_id: bytes
    findings: Findings
    _log_read: int = attrs.field(default=0, init=False)

    async def run(self) -> None:
        while not self.findings.problems:
            share = self.random.choice(MUTATED_SHARES)
            frames = [
                make_frame(self.random, correlation_id=number, topic_id=self.topic_id, mutated_share=share)
                for number in range(self.random.randint(1, FRAMES_MAX_COUNT))
            ]
            try:
                await self._send(frames)
            except OSError as exc:
                self._found(f"no connection any more: {exc}", frames)
            self._look(frames)

    async def _send(self, frames: Sequence[Frame]) -> None:
        """All at once or one after the other; then the answers, or the end."""
        at_once = self.random.random() < 0.5
        async with raw_connection(self.broker.kafka) as stream:
            try:
                for group in [frames] if at_once else [[frame] for frame in frames]:
                    for frame in group:
                        self.findings.sent[frame.api.name] += 1
                    await stream.send_all(b"".join(frame.data for frame in group))
                    if not await self._receive(stream, group):
                        return
            except trio.BrokenResourceError:
                self.findings.closed_count += 1

    async def _receive(self, stream: trio.SocketStream, frames: Sequence[Frame]) -> bool:
        """Tell whether the connection is still there, and worth to be sent something on."""
        reader, answers_count = FrameReader(ANSWER_MAX_BYTES), 0
        waits = any(map(may_be_silent, frames))
        with trio.move_on_after(0.1 if waits else SILENCE_SECONDS):
            while answers_count < len(frames):
                data = await stream.receive_some(1 << 20)
                if not data:
                    self.findings.closed_count += 1
                    return False
                reader.receive_data(data)
                answers_count += len(reader.next_frames())
        self.findings.answered_count += answers_count
        if answers_count < len(frames) and not waits:
            self._found(f"{answers_count} of {len(frames)} requests were answered in {SILENCE_SECONDS:g} s", frames)
        return answers_count == len(frames)

    def _look(self, frames: Sequence[Frame]) -> None:
        if self.broker.returncode is not None:
            self._found(f"the broker has ended with {self.broker.returncode}: {self.broker.log[-2000:]}", frames)
            return
        log = self.broker.log
        if "Traceback" in log[self._log_read :]:
            at = log.index("Traceback", self._log_read)
            self._found("\n".join(log[at:].splitlines()[-SHOWN_LINES:]), frames)
        self._log_read = len(log)

    def _found(self, what: str, frames: Sequence[Frame]) -> None:
        sent = "\n".join(f"  {frame.api.name} {frame.version} {frame.data[:2000].hex()}" for frame in frames)
        self.findings.problems.append(f"{what}\nsent were about then:\n{sent}")


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}, {given.seconds:g} s", flush=True)
    with broker_process() as broker:
        try:
            findings = trio.run(lambda: fuzz(broker, seed=given.seed, seconds=given.seconds))
        except BrokerUnavailable as exc:
            print(f"the broker is gone: {exc}\n{broker.log[-4000:]}")
            return 1
    for name, count in sorted(findings.sent.items()):
        print(f"  {name:28} {count:>8,}")
    print(f"{findings.answered_count:,} answers, {findings.closed_count:,} connections closed by the broker")
    print(*findings.problems, sep="\n\n")
    return 1 if findings.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
