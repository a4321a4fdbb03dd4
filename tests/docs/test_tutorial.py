"""The tutorial on the data pipeline can be followed: its files, commands and notebook are run in order against a
broker, and print what the page shows.

On the page, a block of `sh` is run; one of `python` or `yaml` is a file, named by its first line; one of `text` is what
the block of `sh` before it prints, line by line, among others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

REPOSITORY = Path(__file__).parents[2]
TUTORIAL = REPOSITORY / "docs" / "tutorial"
PAGE = (TUTORIAL / "data-pipeline.md").read_text()

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (\S+)\n")
_MEASURED = re.compile(r"\d+(\.\d+)?( s\b| bytes)")  # which differs from run to run


@attrs.frozen(kw_only=True)
class Command:
    """A block that is run, and the lines that the page shows of what it prints."""

    text: str
    shown: tuple[str, ...] = ()


def steps() -> Iterator[Command]:
    """Of the page, in order. A file is written by a command, as its reader's editor does."""
    blocks = _BLOCK.findall(PAGE)
    for (language, text), (behind, printed) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language == "sh":
            yield Command(text=text, shown=tuple(lines_of(printed)) if behind == "text" else ())
        elif language in ("python", "yaml"):
            name = _FILE_NAME.match(text)
            assert name is not None, f"this file has no name: {text}"
            yield Command(text=f"cat >{name[1]} <<'END_OF_FILE'\n{text}END_OF_FILE\n")


def lines_of(text: str) -> Iterator[str]:
    """What matters in lines: not the case of titles, rules of tables and widths of columns, nor times and sizes."""
    for line in text.lower().splitlines():
        if line.strip(" ─"):
            yield _MEASURED.sub(r"N\2", " ".join(line.split()))


def script(output: Path) -> str:
    """All commands in one shell, whose directory and variables go on from block to block."""
    commands = [f"{{\n{step.text}}} >{output}/{number} 2>&1\n" for number, step in enumerate(steps())]
    return "set -eu\n" + "".join(commands)


def test_what_is_installed_is_there() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = re.findall(r"'\.\[(\w+)\]'", PAGE)
    assert installed
    assert set(installed) <= set(extras)


def test_the_notebook_is_kept_without_what_it_printed() -> None:
    """Outputs would differ with each run, and be old soon."""
    notebook = json.loads((TUTORIAL / "readings.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.spark
@pytest.mark.timeout(2400)  # a minute and a half where nothing else is at work
def test_all_of_it_works_and_prints_what_is_shown(tmp_path: Path) -> None:
    from kafscale.testing.process import broker_process
    from kafscale.testing.spark import skip_without_iceberg

    skip_without_iceberg()
    output = tmp_path / "output"
    output.mkdir()
    with broker_process() as broker:
        clone = tmp_path / "clone"
        clone.mkdir()
        (clone / "docs").symlink_to(REPOSITORY / "docs")
        (clone / "kafscale-data").symlink_to(broker.data_dir)
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("KAFSCALE_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "KAFSCALE_BOOTSTRAP": broker.bootstrap,
            "KAFSCALE_ADMIN_LISTEN": str(broker.admin),
        }
        text = script(output).replace("127.0.0.1:9092", broker.bootstrap)
        done = subprocess.run(["bash"], input=text, cwd=clone, env=environ, text=True, check=False)
    printed = [path.read_text() for path in sorted(output.iterdir(), key=lambda path: int(path.name))]
    assert done.returncode == 0, printed[-1][-3000:]
    for step, text in zip(steps(), printed, strict=True):
        found = iter(lines_of(text))
        for line in step.shown:
            assert line in found, f"not printed, or not in this order: {line}\n{text[-3000:]}"
    assert (clone / "tour" / "readings.png").read_bytes().startswith(b"\x89PNG")
