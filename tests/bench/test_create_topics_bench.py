"""What is measured of a creation of topics is one that has created them."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from bench.create_topics import create_topics, main


async def test_a_creation_is_timed(tmp_path: Path) -> None:
    taken = await create_topics(tmp_path, 20)
    assert taken.seconds > 0
    assert taken.cpu_seconds > 0


def test_the_command_shows_times_and_memory() -> None:
    shown = CliRunner().invoke(main, ["--topics", "20", "--rounds", "2"])
    assert shown.exit_code == 0, shown.output
    assert [line.partition(":")[0] for line in shown.output.splitlines()] == ["seconds", "CPU seconds", "MiB"]
