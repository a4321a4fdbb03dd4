"""`kafscale produce` and `kafscale consume`: what goes in comes out."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from typing import Any

import attrs
import pytest
import trio

from kafscale.cli.main import run
from kafscale.cli.produce import LineReader
from kafscale.cli.records import json_formatter, text_formatter
from kafscale.wire.client_rules import partition_of
from kafscale.wire.messages.records import ProduceRequest
from kafscale.wire.records import Record
from tests.devtools.processes.process import interruptible


async def test_lines_come_back_in_order(kafscale: Any, feed: Any) -> None:
    feed("one\ntwo\r\n\nlast without end")
    await kafscale("produce", "t")
    assert await kafscale("consume", "t", "--from-beginning") == "one\ntwo\n\nlast without end\n"


async def test_a_topic_that_there_is_not_names_the_nearest(kafscale: Any) -> None:
    await kafscale("topics", "create", "orders")
    assert "topic 'ordrs': UNKNOWN_TOPIC_OR_PARTITION (it does not exist; did you mean 'orders'?)" in await kafscale(
        "consume", "ordrs", code=1
    )
    assert "(it does not exist; `kafscale topics list` shows" in await kafscale("consume", "nope", code=1)
    assert "UNKNOWN_TOPIC_OR_PARTITION (its partitions are 0 to 0)" in await kafscale(
        "consume", "orders", "--partition", "7", code=1
    )


async def test_an_offset_behind_the_end_printed_nothing(kafscale: Any, feed: Any) -> None:
    feed("one\ntwo\n")
    await kafscale("produce", "t")
    assert await kafscale("consume", "t", "--offset", "2") == ""
    said = await kafscale("consume", "t", "--offset", "3", code=2)
    assert said == "kafscale: --offset: '3' is beyond the end of topic 't'; allowed: 0 to 2\n"


@pytest.mark.parametrize("value", ["x", "-1", "1.5", str(1 << 63), "1_0"])
async def test_a_wrong_number_error_names_the_allowed_range(kafscale: Any, value: str) -> None:
    assert "; allowed: 0 to 9223372036854775807" in await kafscale("consume", "t", "--offset", value, code=2)


@pytest.mark.parametrize("template", ["%z", "%v %s\\n", "100%", "%%%"])
async def test_a_letter_that_a_format_does_not_know_was_printed(kafscale: Any, template: str) -> None:
    said = await kafscale("consume", "t", "--format", template, code=2)
    assert "which is not known; allowed: %k key, %v value" in said


@pytest.mark.parametrize(
    "options",
    [
        ("consume", "t", "--json", "--format", "%v"),
        ("consume", "t", "--raw", "--json"),
        ("consume", "t", "--key-separator", ":", "--format", "%v"),
        ("produce", "t", "--json", "--key-separator", ":"),
    ],
)
async def test_two_forms_at_once_are_refused(kafscale: Any, options: tuple[str, ...]) -> None:
    """The second was left out without a word."""
    assert "give" in await kafscale(*options, code=2)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_and_more_than_one_batch(kafscale: Any, feed: Any, compression: str) -> None:
    lines = [f"{number} " + "x" * 1000 for number in range(2000)]
    feed("\n".join(lines) + "\n")
    await kafscale("produce", "t", "--compression", compression)
    assert len(kafscale.cluster.topics["t"].logs[0].batches) > 1
    assert (await kafscale("consume", "t", "--from-beginning")).splitlines() == lines


async def test_keys_choose_partitions_as_kafkas_clients_do(kafscale: Any, feed: Any) -> None:
    await kafscale("topics", "create", "t", "--partitions", "4")
    feed("a:1\nb:2\nc:3\na:4:5\n")
    await kafscale("produce", "t", "--key-separator", ":", "--header", "h=1", "--header", "h=2")
    text = await kafscale("consume", "t", "--from-beginning", "--format", r"%p %k %v %h %t%%\n")
    expected = {f"{partition_of(key, 4)} {key.decode()} {value} h=1,h=2 t%" for key, value in
                [(b"a", "1"), (b"b", "2"), (b"c", "3"), (b"a", "4:5")]}  # fmt: skip
    assert set(text.splitlines()) == expected
    of_a = str(partition_of(b"a", 4))
    keyed = await kafscale("consume", "t", "--from-beginning", "--partition", of_a, "--key-separator", r"\t")
    assert [line for line in keyed.splitlines() if line.startswith("a")] == ["a\t1", "a\t4:5"]


async def test_json_goes_out_and_in_again_unchanged(kafscale: Any, feed: Any) -> None:
    records: list[dict[str, Any]] = [
        {"key": "k", "value": None, "headers": [["a", "1"], ["a", None]], "timestamp": 1_000},
        {"key": None, "value_base64": "/w==", "headers": [["b", None, "/w=="]], "timestamp": 2_000},
        {"key": "", "value": "é", "headers": [], "timestamp": 3_000},
    ]
    feed("".join(json.dumps(record) + "\n" for record in records))
    await kafscale("produce", "first", "--json")
    first = await kafscale("consume", "first", "--from-beginning", "--json")
    feed(first)
    await kafscale("produce", "second", "--json")
    second = await kafscale("consume", "second", "--from-beginning", "--json")
    assert first.replace('"topic": "first"', '"topic": "second"') == second
    where = {"topic", "partition", "offset"}
    shown = [
        {name: value for name, value in json.loads(line).items() if name not in where} for line in first.splitlines()
    ]
    assert shown == records


async def test_consume_starts_and_stops_at_the_given_positions(kafscale: Any, feed: Any) -> None:
    feed("".join(f'{{"value": "{number}", "timestamp": {1000 + number}}}\n' for number in range(10)))
    await kafscale("produce", "t", "--json")
    assert await kafscale("consume", "t", "--offset", "8") == "8\n9\n"
    assert await kafscale("consume", "t", "--last", "1") == "9\n"
    assert await kafscale("consume", "t", "--last", "99", "--max-messages", "2") == "0\n1\n"
    assert await kafscale("consume", "t", "--time", "1007", "--raw") == "789"
    assert await kafscale("consume", "t", "--time", "9999") == ""
    assert await kafscale("consume", "t", "--from-beginning", "--follow", "--max-messages", "10") == "".join(
        f"{number}\n" for number in range(10)
    )


async def test_an_offset_that_the_log_does_not_have_is_an_error(kafscale: Any, feed: Any) -> None:
    feed("x\n")
    await kafscale("produce", "t")
    kafscale.cluster.topics["t"].logs[0].start_offset = 1
    line = await kafscale("consume", "t", "--offset", "0", code=1)
    assert line == (
        "kafscale: offset 0 of partition 0 of topic 't': OFFSET_OUT_OF_RANGE (the log has no such offset: it is behind "
        "the end, or was deleted by retention)\n"
    )


async def test_acks_0_is_written_without_an_answer(kafscale: Any, feed: Any) -> None:
    feed("x\n")
    await kafscale("produce", "t", "--acks", "0")
    assert await kafscale("consume", "t", "--from-beginning") == "x\n"


async def test_wrong_input_is_one_line(kafscale: Any, feed: Any) -> None:
    feed("no key\n")
    assert "line 'no key' has no ':' between KEY and VALUE" in await kafscale(
        "produce", "t", "--key-separator", ":", code=2
    )
    times = (f'{{"value": "x", "timestamp": {time}}}' for time in ('"x"', "Infinity", 1 << 63))
    for wrong in (
        "{",
        "[]",
        "[" * 10_000,
        '{"value": 1}',
        '{"value": "x", "headers": [1]}',
        '{"value_base64": "?"}',
        *times,
    ):
        feed(wrong + "\n")
        assert "is not a record; allowed: as `kafscale consume --json`" in await kafscale(
            "produce", "t", "--json", code=2
        )
    assert "give only one of --from-beginning" in await kafscale("consume", "t", "--last", "1", "--offset", "2", code=2)
    assert "topic 'none': UNKNOWN" in await kafscale("consume", "none", "--partition", "0", code=1)


async def test_other_json_became_a_record_that_deletes_its_key(kafscale: Any, feed: Any) -> None:
    feed('{"name": "ann"}\n')
    said = await kafscale("produce", "t", "--json", code=2)
    assert 'line \'{"name": "ann"}\' is not a record' in said
    assert "where the value is a string, or null to delete the key" in said


class Trickle(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(3)


async def test_lines_are_reassembled_from_reads_of_any_size() -> None:
    reader = LineReader(Trickle(b"ab\ncdefgh\n\nij"))
    lines = []
    while some := await reader.read():
        lines += some
    assert lines == [b"ab", b"cdefgh", b"", b"ij"]
    assert await reader.read() == []


async def test_an_interrupted_command_ends_without_a_traceback(kafscale: Any) -> None:
    produced = trio.Event()
    handlers = dict(kafscale.cluster.broker.handlers)

    def note(request: ProduceRequest) -> Any:
        produced.set()
        return handlers[ProduceRequest](request)

    kafscale.cluster.broker.handlers = {**handlers, ProduceRequest: note}
    command = [sys.executable, "-m", "kafscale", "produce", "t", "--bootstrap", str(kafscale.address)]
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=interruptible
    )
    assert process.stdin is not None
    assert process.stderr is not None
    async with process.stdin, process.stderr:
        await process.stdin.send_all(b"a line\n")
        await produced.wait()
        process.send_signal(signal.SIGINT)
        written = b"".join([data async for data in process.stderr]).strip()  # click ends the line that ^C is on
        assert (await process.wait(), written) == (130, b"")


def test_records_do_not_act_on_a_terminal() -> None:
    key, value = b"\x1b[2J", "\x9b31m\u202e, a\tb\n".encode() + b"\xff"
    record = Record(key=key, value=value, timestamp_ms=1, headers=[])
    assert text_formatter("t", "%k\x1b[1m%v\n", for_terminal=True)(0, record) == (
        b"\\x1b[2J\x1b[1m\\x9b31m\\u202e, a\tb\n\\xff\n"
    )
    assert text_formatter("t", "%k%v", for_terminal=False)(0, record) == key + value
    shown = json_formatter("t", for_terminal=True)(0, attrs.evolve(record, value="\u202e".encode()))
    assert b"\\u202e" in shown
    assert json.loads(shown)["value"] == "\u202e"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_person_saw_no_count_of_many_lines(kafscale: Any, feed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    feed("line\n" * 200_000)
    await kafscale("produce", "t")
    assert "records written:" in terminal.getvalue()
    assert terminal.getvalue().endswith("kafscale: 200,000 records written to topic 't'\n")


async def test_the_count_stands_beside_an_error_too(kafscale: Any, feed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One needs it to go on from there."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    feed('{"value": "x"}\n' * 100_000 + "no JSON\n")
    assert await trio.to_thread.run_sync(run, ["produce", "t", "--json", "--bootstrap", str(kafscale.address)]) == 2
    written = kafscale.cluster.topics["t"].logs[0].end_offset
    assert 0 < written < 100_000
    assert f"kafscale: {written:,} records written to topic 't'\n" in terminal.getvalue()


async def test_a_pipe_gets_no_count(kafscale: Any, feed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    feed("line\n")
    await kafscale("produce", "t")
    assert await trio.to_thread.run_sync(run, ["produce", "t", "--bootstrap", str(kafscale.address)]) == 0
    assert capsys.readouterr().err == ""
