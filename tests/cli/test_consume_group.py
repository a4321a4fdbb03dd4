"""`kafscale consume --group` against the real broker: begins where the group has got to, and commits how far it got."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import trio

from kafscale.cli.main import run
from kafscale.client import connect
from kafscale.client.groups import committed_offsets
from kafscale.config import Address
from kafscale.testing.background_broker import BackgroundBroker, running_broker
from tests.devtools.processes.process import interruptible

Command = Callable[..., str]


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with running_broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: BackgroundBroker) -> str:
    return broker.new_topic()


@pytest.fixture
def kafscale(broker: BackgroundBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    def call(*arguments: str, feed: str = "", code: int = 0) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(feed.encode())))
        capsys.readouterr()
        assert run([*arguments, "--bootstrap", broker.bootstrap]) == code
        written = capsys.readouterr()
        return written.err if code else written.out

    return call


def committed(broker: BackgroundBroker, group: str, topic: str) -> dict[int, int]:
    async def ask() -> dict[int, int]:
        async with connect(Address.parse(broker.bootstrap)) as client:
            offsets = await committed_offsets(client, group)
            return {each.partition: offset for each, offset in offsets.items() if each.topic == topic}

    return trio.run(ask)


def test_each_call_resumes_at_the_groups_committed_offsets(kafscale: Command, topic: str) -> None:
    kafscale("produce", topic, feed="1\n2\n3\n")
    read = ("consume", topic, "--group", topic, "--from-beginning")
    assert kafscale(*read, "--max-messages", "2") == "1\n2\n"
    assert kafscale(*read) == "3\n"
    assert kafscale(*read) == ""
    kafscale("produce", topic, feed="4\n")
    assert kafscale(*read) == "4\n"
    assert kafscale("consume", topic, "--group", f"other of {topic}", "--from-beginning") == "1\n2\n3\n4\n"


def test_without_from_beginning_a_new_group_begins_at_the_end(
    kafscale: Command, broker: BackgroundBroker, topic: str
) -> None:
    kafscale("produce", topic, feed="old\n")
    assert kafscale("consume", topic, "--group", topic) == ""
    assert committed(broker, topic, topic) == {0: 1}
    kafscale("produce", topic, feed="new\n")
    assert kafscale("consume", topic, "--group", topic) == "new\n"


def test_a_group_reads_all_partitions_or_only_the_given_one(kafscale: Command, broker: BackgroundBroker) -> None:
    topic = broker.new_topic(partitions=4)
    kafscale("produce", topic, "--key-separator", ":", feed="".join(f"{number}:{number}\n" for number in range(40)))
    of_partition = kafscale("consume", topic, "--group", topic, "--from-beginning", "--partition", "2")
    assert committed(broker, topic, topic) == {2: of_partition.count("\n")}
    others = kafscale("consume", topic, "--group", topic, "--from-beginning")
    assert sorted((of_partition + others).split(), key=int) == [str(number) for number in range(40)]
    assert sum(committed(broker, topic, topic).values()) == 40


def test_an_offset_that_the_log_no_longer_has_is_not_begun_at(kafscale: Command, topic: str) -> None:
    kafscale("produce", topic, feed="1\n2\n")
    kafscale("consume", topic, "--group", topic, "--from-beginning")
    kafscale("topics", "delete", topic)
    kafscale("topics", "create", topic)
    kafscale("produce", topic, feed="again\n")
    assert kafscale("consume", topic, "--group", topic, "--from-beginning") == "again\n"


def test_an_interrupted_consumer_commits_its_written_records(
    broker: BackgroundBroker, topic: str, kafscale: Command
) -> None:
    kafscale("produce", topic, feed="1\n2\n")
    command = [sys.executable, "-m", "kafscale", "consume", topic, "--group", topic, "--from-beginning", "--follow"]
    process = subprocess.Popen(
        [*command, "--bootstrap", broker.bootstrap], stdout=subprocess.PIPE, preexec_fn=interruptible
    )
    with process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
        kafscale("produce", topic, feed="3\n")
        assert process.stdout.readline() == b"3\n"  # so the first two are not only written, but noted as such
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    assert committed(broker, topic, topic)[0] >= 2


def test_a_group_contradicts_a_start_offset(kafscale: Command, topic: str) -> None:
    error = kafscale("consume", topic, "--group", "g", "--offset", "3", code=2)
    assert "--group sets the start; it allows --from-beginning only" in error
