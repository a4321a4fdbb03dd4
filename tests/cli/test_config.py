"""`kafscale config`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafscale.cli.main import run
from kafscale.config import options


def test_each_value_is_shown_with_its_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "kafscale.toml"
    file.write_text("broker-id = 7\n")
    monkeypatch.setenv("KAFSCALE_SEGMENT_BYTES", "1048576")
    assert run(["config", "--json", "--config", str(file), "--auto-create-topics=false", "--s3-create-bucket"]) == 0
    rows = {row["option"]: (row["value"], row["source"]) for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == [each.name for each in options()]
    assert rows["broker-id"] == ("7", f"file {file}")
    assert rows["segment-bytes"] == ("1MiB", "environment KAFSCALE_SEGMENT_BYTES")
    assert rows["auto-create-topics"] == ("false", "flag --auto-create-topics")
    assert rows["s3-create-bucket"] == ("true", "flag --s3-create-bucket")
    assert rows["flush-interval"] == ("10s", "default")


def test_config_prints_plain_columns_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "--listen", "A=h:1", "--listen", "B=h:2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["OPTION", "VALUE", "SOURCE"]
    assert lines[1].split() == ["listen", "A=h:1,B=h:2", "flag", "--listen"]
