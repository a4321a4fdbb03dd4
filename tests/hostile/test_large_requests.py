"""Every API with each of its arrays large, from a client with few rights: none stops the event loop, and all is linear.

The requests are made from the schemas (`fakes.large_requests`). The loop's steps are measured in CPU time.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import attrs
import pytest
import trio

from kafscale.api.table import APIS
from kafscale.cli.main import run
from kafscale.config import Address, SaslMechanism
from kafscale.wire import codec, error_codes
from kafscale.wire.frames import FrameReader, RequestHeader, request_frame
from kafscale.wire.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kafscale.wire.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from kafscale.wire.messages.topics import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.devtools.processes import timed_loop
from tests.devtools.processes.process import BrokerProcess, broker_process, peak_rss_mib, reset_peak_rss
from tests.devtools.processes.sasl import plain_message
from tests.hostile.hostile import (
    MAX_ANSWER_BYTES,
    STEP_MAX_SECONDS,
    next_answer,
    raw_connection,
    request_bytes,
)
from tests.hostile.large_requests import NAME, PREFIX, large_requests

USER, PASSWORD = "low", "few rights"
PARTITIONS_COUNT = 50
PIPELINED_COUNT = 2
ANSWER_TIMEOUT_SECONDS = 120
ALL_COUNT = 100_000  # entries of an array
SOME_COUNT = 20_000  # of the tests that everybody runs: a step that grows with the entries is a fifth as long
GROWN_MAX_MIB = 250
FAILING = ["one unknown topic", "unknown topics", "unknown ids", "refused", "out of range"]
WIDE, WIDE_COUNT = f"{PREFIX}wide", 5_000  # a topic with the most partitions that one request creates
FETCHES_COUNT = 4
CONNECTIONS_COUNT = 3
LEFT_MAX_MIB = 30
FLEXIBLE_HEADER_BYTES = 5  # of an answer: the correlation id, and no tags
CPU_FLOOR_SECONDS = 0.5
CPU_MAX_SECONDS_PER_MIB = 4.0  # of requests and answers together; an entry is some 10 bytes


@attrs.frozen(kw_only=True)
class Guarded:
    """A broker with lists, and what the client with few rights needs there."""

    process: BrokerProcess
    address: Address
    topic_id: bytes
    topics: set[str] = attrs.field(factory=set)  # that tests have added


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    password_file = tmp_path_factory.mktemp("large") / "password"
    password_file.write_text(PASSWORD)
    listen = ("--listen", "SASL_PLAINTEXT=127.0.0.1:0", "--sasl-mechanisms", "PLAIN")
    lists = ("--authorizer", "acl", "--super-user", "User:ANONYMOUS")
    with broker_process(*listen, *lists, program=timed_loop.PROGRAM) as running:
        _prepare(running, password_file)
        topic_id = trio.run(_topic_id, running)
        yield Guarded(process=running, address=Address.parse(running.further_listeners[0]), topic_id=topic_id)
        assert running.returncode is None, running.log


def _prepare(running: BrokerProcess, password_file: Path) -> None:
    at = ("--bootstrap", running.bootstrap)
    assert run(["users", "add", USER, "--password-file", str(password_file), "--iterations", "4096", *at]) == 0
    for resource in ("topic", "group", "transactional-id"):
        rights = ("--operation", "all", f"--{resource}", PREFIX, "--prefixed")
        assert run(["acls", "add", f"User:{USER}", *rights, *at]) == 0
    assert run(["topics", "create", NAME, "--partitions", str(PARTITIONS_COUNT), *at]) == 0


async def _topic_id(running: BrokerProcess) -> bytes:
    async with raw_connection(running.kafka) as stream:
        await stream.send_all(request_bytes(MetadataRequest(topics=[MetadataRequestTopic(name=NAME)]), 12))
        answer = await next_answer(stream)
    assert answer is not None
    return codec.decode(MetadataResponse, 12, answer[5:]).topics[0].topic_id


@attrs.define
class Cost:
    """The cost of requests that were sent without waiting for answers."""

    sent_bytes: int = 0
    answered_bytes: int = 0
    answers_count: int = 0
    cpu_seconds: float = 0.0
    longest_step_seconds: float = 0.0
    grown_mib: float = 0.0

    def problems(self, step_max_seconds: float) -> list[str]:
        found = []
        if self.longest_step_seconds > step_max_seconds:
            found.append(f"the event loop computed for {self.longest_step_seconds:.3f} s at a stretch")
        most = CPU_FLOOR_SECONDS + CPU_MAX_SECONDS_PER_MIB * (self.sent_bytes + self.answered_bytes) / 2**20
        if self.cpu_seconds > most:
            found.append(f"it took {self.cpu_seconds:.2f} s of CPU")
        if self.grown_mib > GROWN_MAX_MIB:
            found.append(f"the broker has grown by {self.grown_mib:.0f} MiB")
        return found


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def logged_in(guarded: Guarded) -> AsyncIterator[trio.SocketStream]:
    """A connection of the client with few rights."""
    async with raw_connection(guarded.address) as stream:
        for step in (SaslHandshakeRequest(mechanism=SaslMechanism.PLAIN.value), None):
            message = step or SaslAuthenticateRequest(auth_bytes=plain_message(USER, PASSWORD))
            await stream.send_all(request_bytes(message, 1))
            assert await next_answer(stream) is not None
        yield stream


@asynccontextmanager
async def measured(guarded: Guarded) -> AsyncIterator[Cost]:
    """The cost of what a client does in the block, after which the bytes have to be counted in it."""
    process, cost = guarded.process, Cost()
    async with logged_in(guarded):
        reset_peak_rss(process.pid)
        before, calm_mib = cpu_seconds(process.pid), peak_rss_mib(process.pid)
        timed_loop.forget_steps(process.directory)
    yield cost
    async with raw_connection(process.kafka) as stream:  # what the end of the connection costs counts as well
        await stream.send_all(request_bytes(MetadataRequest(topics=[]), 12))
        assert await next_answer(stream) is not None
    cost.longest_step_seconds = timed_loop.longest_step_seconds(process.directory)
    cost.cpu_seconds = cpu_seconds(process.pid) - before
    cost.grown_mib = peak_rss_mib(process.pid) - calm_mib


async def cost_of(guarded: Guarded, frame: bytes) -> Cost:
    """Send a request some times at once, as the client with few rights, and wait for the answers or the end."""
    async with measured(guarded) as cost:
        async with logged_in(guarded) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(_send, stream, frame * PIPELINED_COUNT)
            with trio.fail_after(ANSWER_TIMEOUT_SECONDS):
                lengths = await read_answers(stream, PIPELINED_COUNT)
            nursery.cancel_scope.cancel()
        cost.sent_bytes, cost.answered_bytes = len(frame) * PIPELINED_COUNT, sum(lengths)
        cost.answers_count = len(lengths)
    return cost


async def read_answers(stream: trio.SocketStream, count: int) -> Sequence[int]:
    """The lengths of this many answers, or of those that come before the broker closes the connection."""
    frames, lengths = FrameReader(MAX_ANSWER_BYTES), list[int]()
    with suppress(trio.BrokenResourceError):
        while len(lengths) < count and (data := await stream.receive_some(1 << 20)):
            frames.receive_data(data)
            lengths += [len(frame) for frame in frames.next_frames()]
    return lengths


async def _send(stream: trio.SocketStream, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # refused, with the end of the connection
        await stream.send_all(data)


def frame_of(api: object, version: int, message: object) -> bytes:
    header = RequestHeader(api_key=api.key, api_version=version, correlation_id=1, client_id="low")  # type: ignore[attr-defined]
    flexible = codec.is_flexible(type(message), version)
    return b"".join(request_frame(header, codec.encode(message, version), flexible_header=flexible))


async def problems_of(guarded: Guarded, name: str, count: int, step_max_seconds: float) -> list[str]:
    api = next(each.load() for each in APIS if each.name == name)
    found = []
    for large in large_requests(api, count, guarded.topic_id):
        frame = frame_of(api, api.max_version, large.message)
        cost = await cost_of(guarded, frame)
        if os.environ.get("SHOW_COSTS"):
            print(f"\n{name}.{large.path}: {cost}", end="")
        found += [f"{name}.{large.path or 'strings'}: {each}" for each in cost.problems(step_max_seconds)]
    return found


@pytest.mark.parametrize("name", [each.name for each in APIS])
async def test_no_large_request_stops_the_event_loop(guarded: Guarded, name: str) -> None:
    assert not await problems_of(guarded, name, SOME_COUNT, STEP_MAX_SECONDS * SOME_COUNT / ALL_COUNT + 0.05)


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [each.name for each in APIS])
async def test_no_request_of_the_largest_stops_the_event_loop(guarded: Guarded, name: str) -> None:
    assert not await problems_of(guarded, name, ALL_COUNT, STEP_MAX_SECONDS)


@attrs.frozen(kw_only=True)
class FailingSession:
    """Partitions of a Fetch session none of which can be read, how they are asked for, and what is answered."""

    version: int
    topics: Sequence[FetchTopic]
    error_code: int
    is_kept: bool = False  # by the broker, as Kafka does where a partition exists and may be read

    @property
    def count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics)


def failing_session(kind: str, count: int) -> FailingSession:
    if kind == "one unknown topic":
        topics = [FetchTopic(topic=f"{PREFIX}unknown", partitions=wanted(range(count)))]
        return FailingSession(version=12, topics=topics, error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    if kind == "unknown topics":
        topics = [FetchTopic(topic=f"{PREFIX}{number}-unknown", partitions=wanted([0])) for number in range(count)]
        return FailingSession(version=12, topics=topics, error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    if kind == "unknown ids":
        topics = [FetchTopic(topic_id=(number + 1).to_bytes(16), partitions=wanted([0])) for number in range(count)]
        return FailingSession(version=18, topics=topics, error_code=error_codes.UNKNOWN_TOPIC_ID)
    if kind == "refused":
        topics = [FetchTopic(topic=f"other-{number}", partitions=wanted([0])) for number in range(count)]
        return FailingSession(version=12, topics=topics, error_code=error_codes.TOPIC_AUTHORIZATION_FAILED)
    assert kind == "out of range"
    topics = [FetchTopic(topic=WIDE, partitions=wanted(range(WIDE_COUNT)))]
    return FailingSession(version=12, topics=topics, error_code=error_codes.OFFSET_OUT_OF_RANGE, is_kept=True)


def wanted(indexes: Iterable[int]) -> list[FetchPartition]:
    return [FetchPartition(partition=index, fetch_offset=1 << 40, partition_max_bytes=1) for index in indexes]


@attrs.define
class SessionClient:
    """Fetches by a session as Java's consumer does: all partitions where the broker keeps none, else those that have
    changed, which is none."""

    stream: trio.SocketStream
    failing: FailingSession
    cost: Cost
    session_id: int = 0
    epoch: int = 0

    async def fetch(self) -> FetchResponse:
        topics = list(self.failing.topics) if not self.session_id else []
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, topics=topics, session_id=self.session_id, session_epoch=self.epoch
        )
        sent = request_bytes(request, self.failing.version)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send, self.stream, sent)
            with trio.fail_after(ANSWER_TIMEOUT_SECONDS):
                answer = await next_answer(self.stream)
        assert answer is not None
        self.cost.sent_bytes += len(sent)
        self.cost.answered_bytes += len(answer)
        self.cost.answers_count += 1
        response = codec.decode(FetchResponse, self.failing.version, answer[FLEXIBLE_HEADER_BYTES:])
        self.session_id = response.session_id
        self.epoch = self.epoch + 1 if self.session_id else 0
        return response


async def fetch_failing(guarded: Guarded, failing: FailingSession) -> Cost:
    """Fetch some times, each time to be told of all partitions that they fail, and end the connection."""
    async with measured(guarded) as cost:
        async with logged_in(guarded) as stream:
            client = SessionClient(stream, failing, cost)
            for _ in range(FETCHES_COUNT):
                response = await client.fetch()
                told = [each.error_code for topic in response.responses for each in topic.partitions]
                assert (len(told), set(told)) == (failing.count, {failing.error_code})
                assert bool(client.session_id) == failing.is_kept
    return cost


def problems_of_sessions(guarded: Guarded, kind: str, count: int, step_max_seconds: float) -> list[str]:
    """Fetch by several connections, one after the other: what the later ones need is what the earlier have left."""
    if kind == "out of range" and WIDE not in guarded.topics:
        at = ("--bootstrap", guarded.process.bootstrap)
        assert run(["topics", "create", WIDE, "--partitions", str(WIDE_COUNT), *at]) == 0
        guarded.topics.add(WIDE)
    failing, found, peaks_mib = failing_session(kind, count), list[str](), list[float]()
    for _ in range(CONNECTIONS_COUNT):
        cost = trio.run(fetch_failing, guarded, failing)
        found += cost.problems(step_max_seconds)
        peaks_mib.append(peak_rss_mib(guarded.process.pid))
        if os.environ.get("SHOW_COSTS"):
            print(f"\n{kind}: {cost}, {peaks_mib[-1]:.0f} MiB", end="")
    left_mib = peaks_mib[-1] - peaks_mib[0]
    if left_mib > LEFT_MAX_MIB:
        found.append(f"connections that have ended have left {left_mib:.0f} MiB")
    return found


@pytest.mark.parametrize("kind", FAILING)
def test_no_session_of_failing_partitions_stops_the_event_loop(guarded: Guarded, kind: str) -> None:
    step_max_seconds = STEP_MAX_SECONDS * SOME_COUNT / ALL_COUNT + 0.03
    assert not problems_of_sessions(guarded, kind, SOME_COUNT, step_max_seconds)


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", FAILING)
def test_no_session_of_most_failing_partitions_stops_the_event_loop(guarded: Guarded, kind: str) -> None:
    assert not problems_of_sessions(guarded, kind, ALL_COUNT, STEP_MAX_SECONDS)
