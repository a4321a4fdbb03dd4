"""A short run of the bench of an open console."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from bench.console_open import main


def test_a_short_run_measures_both_and_writes_the_turns(tmp_path: Path) -> None:
    output = tmp_path / "turns.json"
    done = CliRunner().invoke(main, ["--turns", "1", "--seconds", "0.5", "--output", str(output)])
    assert done.exit_code == 0, done.output
    turns = json.loads(output.read_text())["turns"]
    assert [turn["is_open"] for turn in turns] == [False, True]
    assert all(turn["cpu_ms"] > 0 and turn["p99_ms"] >= turn["p50_ms"] > 0 for turn in turns)
