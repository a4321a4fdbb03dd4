"""`kafscale pipeline` as processes: what they print, what they leave in the tables, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.devtools.external.spark import environ_of, store_of, wait_for_topic
from tests.devtools.processes.process import interruptible
from tests.spark.pipeline.pipeline_driver import group_of, pipeline_command

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("iceberg")]

DONE = re.compile(r"batch (\d+), (\d+) records(, \d+ dead letters)?, \d+ bytes committed in [\d.]+ s, lag (\d+)")

SPARKS = (
    "WARNING: Using incubator modules",
    "Setting default log level",
    "To adjust logging",
    "Setting Spark log level",
)

Write = Callable[..., Path]


@pytest.fixture
def write(broker, warehouse, tmp_path) -> Write:
    def write(*mappings: str, more: str = "") -> Path:
        """A pipeline of mappings in YAML."""
        path = tmp_path / "pipeline.yaml"
        path.write_text(
            f'source: {{store: "{store_of(broker)}"}}\n'
            f'catalog: {{type: hadoop, warehouse: "{warehouse}"}}\n'
            f'checkpoints: "{tmp_path / "checkpoints"}"\n{more}\nmappings:\n'
            + "".join(f"- {each}\n" for each in mappings)
        )
        return path

    return write


@contextmanager
def started(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """`kafscale pipeline` in a process group of its own; killed if it has not ended by the end of the block."""
    process = subprocess.Popen(
        pipeline_command(*arguments),
        env=environ_of(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=interruptible,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Its exit code, and what it printed, without what Spark says of its start."""
    with started(*arguments) as process:
        out, err = process.communicate()
    return process.returncode, out, "".join(line for line in err.splitlines(True) if not line.startswith(SPARKS))


def columns(line: str) -> list[str]:
    return re.split(r"\s{2,}", line)


def test_run_once_then_status_then_maintain(topic, produce, write):
    produce(topic, [(number % 2, b"k", b"%d" % number if number % 10 else b"\xff") for number in range(50)])
    file = write(
        f"{{topic: {topic}, table: db.{topic}, dead_letters: db.{topic}_dead, "
        "value: {format: string}, max_records: 20}"
    )
    code, out, err = run("run", "--once", file)
    assert (code, out) == (0, ""), err
    assert all(line.startswith(f"db.{topic}: ") for line in err.splitlines()), err
    told = [found.groups() for found in map(DONE.search, err.splitlines()) if found]
    assert [(batch, count, lag) for batch, count, _, lag in told] == [
        ("0", "20", "30"),
        ("1", "20", "10"),
        ("2", "10", "0"),
    ]
    assert sum(int(letters.split()[1]) for _, _, letters, _ in told if letters) == 5

    code, out, err = run("status", "--json", file)
    assert (code, err) == (0, "")
    (status,) = json.loads(out)
    assert (status["mapping"], status["batch_id"], status["lag"], status["dead_letters"]) == (f"db.{topic}", 2, 0, 5)
    assert status["offsets"] == {topic: {"0": 25, "1": 25}}
    assert (status["lag_bytes"], status["lag_seconds"]) == (0, 0.0)

    code, out, err = run("prove", "--json", file)
    assert (code, err) == (0, "")
    (proof,) = json.loads(out)
    assert (proof["mapping"], proof["found"], proof["snapshots"], proof["records"]) == (f"db.{topic}", "proven", 3, 50)
    code, _, err = run("prove", "--mapping", "other", file)
    assert (code, "has no mapping 'other'" in err) == (2, True)

    code, out, err = run("maintain", file)
    assert (code, err) == (0, "")
    assert [columns(line) for line in out.splitlines()] == [
        ["TABLE", "COMPACTED FILES", "EXPIRED FILES", "ORPHAN FILES", "PROBLEM"],
        [f"db.{topic}", "0", "0", "0", "-"],
        [f"db.{topic}_dead", "0", "0", "0", "-"],
    ]


def test_reset_reports_the_next_offsets_and_changes_nothing_with_dry_run(broker, topic, produce, write):
    from confluent_kafka.admin import AdminClient

    produce(topic, [(0, None, b"old")] * 3)
    file = write(f"{{topic: {topic}, table: db.{topic}}}")
    assert run("run", "--once", file)[0] == 0
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result()
    produce(topic, [(0, None, b"new")] * 5)  # which creates it again
    code, _, err = run("run", "--once", file)
    assert (code, f"topic '{topic}' was deleted and created again" in err) == (1, True), err
    assert "kafscale pipeline reset --topic" in err
    for options, outcome in ((["--dry-run"], "would be reset"), ([], "reset")):
        code, out, err = run("reset", "--topic", topic, "--json", *options, file)
        assert (code, err) == (0, "")
        (row,) = json.loads(out)
        assert (row["mapping"], row["topic"], row["outcome"]) == (f"db.{topic}", topic, outcome)
        assert (row["offsets"][0], row["new_offsets"]) == ("0:3", ["0:0"])
        assert len({row["topic_id"], row["new_topic_id"]}) == 2
    assert run("run", "--once", file)[0] == 0
    code, out, err = run("status", "--json", file)
    assert json.loads(out)[0]["offsets"] == {topic: {"0": 5}}
    code, _, err = run("reset", "--topic", "never-read", file)
    assert (code, "no mapping has begun to read topic 'never-read'" in err) == (2, True)


def test_validate_shows_all_and_ends_with_1_if_anything_is_missing(broker, topic, produce, write):
    produce(topic, [(0, None, b"v")])
    wait_for_topic(broker, topic)  # and its empty partition
    there = f"{{topic: {topic}, table: db.{topic}}}"
    code, out, err = run("validate", write(there))
    assert (code, err) == (0, "")
    assert [columns(line) for line in out.splitlines()] == [
        ["MAPPING", "WHAT", "FOUND", "OK"],
        [f"db.{topic}", "topics", f"1 topic, 2 partitions: {topic}", "yes"],
        [f"db.{topic}", "columns", "value binary", "yes"],
        [f"db.{topic}", "table", "will be created", "yes"],
    ]
    code, out, err = run("validate", write(there, "{topic: never-produced, table: db.never}"))
    assert code == 1
    assert [columns(line)[3] for line in out.splitlines()[1:]] == ["yes", "yes", "yes", "no", "yes", "yes"]
    assert "db.never: topics: " in err
    assert "'never-produced'" in err


def test_run_tells_of_a_mapping_that_fails_and_ends_with_1_when_the_others_are_done(topic, produce, write):
    produce(topic, [(0, None, b"good"), (1, None, b"\xff")])
    file = write(
        f"{{topic: {topic}, table: db.{topic}_text, value: {{format: string}}}}",
        f"{{topic: {topic}, table: db.{topic}_bytes}}",
    )
    code, out, err = run("run", "--once", file)
    assert (code, out) == (1, "")
    assert f"db.{topic}_text: failed: the mapping 'db.{topic}_text' has bad records" in err
    assert f"db.{topic}_bytes: batch 0, 2 records" in err
    assert err.splitlines()[-1].endswith(f"1 of 2 mappings failed: db.{topic}_text")


@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGTERM, os.kill), (signal.SIGINT, os.killpg)], ids=["kill", "Ctrl-C"]
)
def test_run_reads_and_maintains_its_tables_until_a_signal(topic, produce, write, number, send):
    produce(topic, [(0, None, b"v")] * 3)
    file = write(
        f"{{topic: {topic}, table: db.{topic}}}",
        more="trigger: 100ms\nmetrics: 127.0.0.1:0\nmaintenance: {every: 1s}",
    )
    with started("run", file) as process:
        assert process.stderr is not None
        lines = iter(process.stderr)
        served = next(line for line in lines if line.startswith("metrics at "))
        assert next(line for line in lines if f"db.{topic}: batch 0, 3 records" in line)
        assert next(line for line in lines if f"db.{topic}: 0 files compacted" in line)
        with urllib.request.urlopen(served.removeprefix("metrics at ").strip()) as answer:
            told = answer.read().decode()
        assert f'kafscale_pipeline_records_total{{mapping="db.{topic}"}} 3' in told
        assert f'kafscale_pipeline_rows_total{{mapping="db.{topic}"}} 3' in told
        assert f'kafscale_pipeline_lag_bytes{{mapping="db.{topic}"}} ' in told
        produce(topic, [(1, None, b"v")])
        assert next(line for line in lines if f"db.{topic}: batch 1, 1 records" in line)
        send(process.pid, number)
        rest = process.stderr.read()
    assert process.returncode == 0, rest
    assert "Traceback" not in rest


def test_a_jvm_that_was_killed_ended_run_with_a_traceback_of_its_lock(topic, produce, write):
    produce(topic, [(0, None, b"v")])
    file = write(f"{{topic: {topic}, table: db.{topic}}}", more="trigger: 100ms")
    with started("run", file) as process:
        assert process.stderr is not None
        assert next(line for line in process.stderr if f"db.{topic}: batch 0, 1 records" in line)
        (jvm,) = [pid for pid, command in group_of(process.pid) if b"org.apache.spark" in command]
        os.kill(jvm, signal.SIGKILL)
        rest = process.stderr.read()
    assert process.returncode == 1, rest
    assert rest.splitlines()[-1] == f"kafscale: 1 of 1 mappings failed: db.{topic}"
