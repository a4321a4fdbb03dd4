"""`kafscale consume --isolation-level`, and the records of a broker under test, where transactions were written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafscale.cli.main import run
from kafscale.testing.background_broker import BackgroundBroker, running_broker
from tests.devtools.fakes.memory_log import append_nowait
from tests.devtools.fakes.transactions import abort, commit, send

TOPIC = "t"
COMMITTED = ["committed", "plain", "again of 1"]
EVERYTHING = ["aborted", "committed", "aborted too", "aborted later", "plain", "again of 1", "open", "behind"]


@pytest.fixture
def broker() -> Iterator[BackgroundBroker]:
    """A broker whose topic has transactions, the last of which is open."""
    with running_broker() as found:
        found.create_topic(TOPIC)
        found._thread.call(_write, found)
        yield found


async def _write(broker: BackgroundBroker) -> None:
    log = broker._running().services.log
    partition = log.partition_named(TOPIC, 0)
    assert partition is not None
    await send(partition, b"aborted", producer_id=1)
    await send(partition, b"committed", producer_id=2)
    await send(partition, b"aborted too", producer_id=1, sequence=1)
    await commit(partition, producer_id=2)
    await abort(partition, producer_id=1)
    await send(partition, b"aborted later", producer_id=5)
    await abort(partition, producer_id=5)
    append_nowait(partition, b"plain")
    await send(partition, b"again of 1", producer_id=1, sequence=2)
    await commit(partition, producer_id=1)
    await log.flusher.flush_all()
    await send(partition, b"open", producer_id=3)
    _, round = append_nowait(partition, b"behind")
    await round.wait()


@pytest.fixture
def consume(broker: BackgroundBroker, capsys: pytest.CaptureFixture[str]):
    def consume(*arguments: str) -> list[str]:
        capsys.readouterr()
        assert run(["consume", TOPIC, *arguments, "--bootstrap", broker.bootstrap]) == 0
        return capsys.readouterr().out.splitlines()

    return consume


def test_all_records_are_written_unless_read_committed_is_given(consume):
    assert consume("--from-beginning") == EVERYTHING
    assert consume("--from-beginning", "--isolation-level", "read_uncommitted") == EVERYTHING
    assert consume("--from-beginning", "--isolation-level", "read_committed") == COMMITTED


def test_each_place_to_begin_goes_with_the_isolation_level(consume):
    committed = ("--isolation-level", "read_committed")
    assert consume("--offset", "2", *committed) == COMMITTED[1:]
    assert consume("--last", "1") == EVERYTHING[-1:]
    assert consume("--last", "2", *committed) == COMMITTED[-1:], "its end is the last stable offset"
    assert consume("--time", "0", *committed) == COMMITTED
    assert consume("--group", "g", "--from-beginning", *committed) == COMMITTED
    assert consume("--group", "g", *committed) == []
    assert consume("--group", "g") == EVERYTHING[-2:], "the group has not got behind the end of what is decided"
    assert consume("--group", "g", "--from-beginning", *committed) == [], "it has now, and began again"


def test_a_test_brokers_records_match_the_consumers_records(broker):
    assert [each.value.decode() for each in broker.records(TOPIC)] == EVERYTHING
    found = broker.records(TOPIC, isolation_level="read_committed")
    assert [each.value.decode() for each in found] == COMMITTED


def test_an_unknown_isolation_level_is_refused(capsys):
    assert run(["consume", TOPIC, "--isolation-level", "none"]) == 2
    assert "read_committed" in capsys.readouterr().err


def test_multi_record_batches_are_kept_or_dropped_by_their_marker(broker, consume):
    async def write() -> None:
        partition = broker._running().services.log.partition_named(TOPIC, 0)
        assert partition is not None
        await commit(partition, producer_id=3)
        await send(partition, b"a", b"b", b"c", producer_id=4)
        await abort(partition, producer_id=4)
        await send(partition, b"d", b"e", producer_id=4, sequence=3)
        await commit(partition, producer_id=4)

    broker._thread.call(write)
    found = consume("--from-beginning", "--isolation-level", "read_committed")
    assert found == [*COMMITTED, "open", "behind", "d", "e"]
