"""The pages that read the bucket of a real broker: sizes, the check, SQL, pipelines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from kafscale.config import Address, Settings
from kafscale.console import runs
from kafscale.console.runs import Run, RunState
from kafscale.console.settings import ConsoleSettings
from kafscale.testing.secured_broker import SecuredBroker
from tests.console.browsing import browsing, send, wait_for
from tests.devtools.processes.process import BrokerProcess

MARKUP = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleSettings]:
    """A console beside a broker whose bucket has two topics."""
    with BrokerProcess(directory=tmp_path_factory.mktemp("broker")) as broker:
        lines = tmp_path_factory.mktemp("lines") / "lines"
        lines.write_text("".join(json.dumps({"n": n, "text": MARKUP}) + "\n" for n in range(10)))
        for topic in ("orders", "payments"):
            with lines.open() as stdin:
                _run(stdin.fileno(), "produce", topic, "--bootstrap", broker.bootstrap)
        _run(None, "flush", "--admin", str(broker.admin))
        bucket = Settings(data_dir=broker.data_dir)
        yield ConsoleSettings(bootstrap=[Address.parse(broker.bootstrap)], admin=broker.admin, bucket=bucket)


def _run(stdin: int | None, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "kafscale", *arguments], stdin=stdin, check=True, env=os.environ)


async def test_the_bucket_shows_sizes_and_cost_by_topic(settings: ConsoleSettings) -> None:
    async with browsing(settings) as pages:
        page = (await pages.get("/bucket")).text
        assert "Oldest unflushed records" in page
        usage = await wait_for(pages, "/bucket/usage", "Measured in")
    assert '<th scope="row">orders</th><td class="number">1</td>' in usage
    assert "0.00 USD" in usage


async def test_the_check_reports_whole_objects_and_then_a_damaged_one(settings: ConsoleSettings) -> None:
    assert settings.bucket is not None
    segment = next((settings.bucket.data_dir / "bucket").rglob("*.kfs"))
    whole = segment.read_bytes()
    async with browsing(settings) as pages:
        await send(pages, "/bucket/verify")
        await wait_for(pages, "/bucket/check", "All objects are whole.")
        segment.write_bytes(whole[:100] + b"\xff" + whole[101:])
        try:
            await send(pages, "/bucket/verify")
            found = await wait_for(pages, "/bucket/check", "The bucket is damaged.")
        finally:
            segment.write_bytes(whole)
    assert segment.name in found


async def test_a_statement_is_answered_with_a_table_and_a_chart(settings: ConsoleSettings) -> None:
    statement = "SELECT value, offset + 1 AS next FROM orders ORDER BY offset"
    async with browsing(settings) as pages:
        await send(pages, "/sql", statement=statement)
        answer = await wait_for(pages, "/sql/result", "10 rows in")
        assert statement in (await pages.get("/sql")).text
    assert '<th scope="col">next</th>' in answer
    assert MARKUP not in answer
    assert "&lt;script&gt;" in answer
    assert answer.count('<rect class="bar"') == 10


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELEC 1", "SELEC"),
        ("SELECT * FROM nothing", "there is no topic, table or view"),
        ("SELECT * FROM read_csv('/etc/passwd')", "read_csv"),
    ],
)
async def test_a_wrong_statement_says_why(settings: ConsoleSettings, statement: str, message: str) -> None:
    async with browsing(settings) as pages:
        await send(pages, "/sql", statement=statement)
        answer = await wait_for(pages, "/sql/result", 'class="problem"')
    assert message in answer


async def test_a_cancelled_statement_ends_its_process(settings: ConsoleSettings) -> None:
    statement = "SELECT count(*) FROM orders a, orders b, orders c, orders d, orders e, orders f, orders g, orders h"
    async with browsing(settings) as pages:
        await send(pages, "/sql", statement=statement)
        await wait_for(pages, "/sql/result", "Running for")
        await send(pages, "/sql/cancel")
        await wait_for(pages, "/sql/result", "Cancelled after")


async def test_a_wrong_pipeline_file_says_why(settings: ConsoleSettings, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("mappings: 3\n")
    async with browsing(attrs.evolve(settings, pipelines=[tmp_path / "bad.yaml"])) as pages:
        assert "bad.yaml" in (await pages.get("/pipelines")).text
        assert "bad.yaml" in await wait_for(pages, "/pipelines/state", 'class="problem"')


async def test_a_console_without_a_bucket_says_which_option_is_missing(settings: ConsoleSettings) -> None:
    async with browsing(attrs.evolve(settings, bucket=None)) as pages:
        for path in ("/bucket", "/sql"):
            assert "<code>--store</code>" in (await pages.get(path)).text


async def test_reading_works_with_read_only(settings: ConsoleSettings) -> None:
    async with browsing(attrs.evolve(settings, is_read_only=True)) as pages:
        await send(pages, "/sql", statement="SELECT count(*) AS n FROM orders")
        await wait_for(pages, "/sql/result", "1 rows in")


@pytest.mark.kafscale(protocol="SASL_PLAINTEXT")
async def test_a_user_without_the_right_cannot_read_the_bucket(
    secured_pages: httpx.AsyncClient, kafscale_secured_broker: SecuredBroker
) -> None:
    """The bucket has the records of all topics, so topics' ACLs are not enough."""
    secured_pages._transport.app.state.console.settings = attrs.evolve(  # type: ignore[attr-defined]
        secured_pages._transport.app.state.console.settings,
        bucket=Settings(),  # type: ignore[attr-defined]
    )
    await secured_pages.post("/login", data={"mechanism": "SCRAM-SHA-512", "user": "alice", "password": "alice's"})
    for path in ("/bucket", "/sql", "/pipelines"):
        assert "Needs the ACL Alter on the cluster" in (await secured_pages.get(path)).text
    await send(secured_pages, "/sql", statement="SELECT 1")
    assert "rows" not in (await secured_pages.get("/sql/result")).text


async def test_a_long_output_is_cut_and_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "OUTPUT_MAX_BYTES", 1000)
    run = Run(["config", "--json"])
    await run.run(trio.CapacityLimiter(1))
    assert (run.state, run.is_cut, len(run.output)) == (RunState.DONE, True, 1000)
