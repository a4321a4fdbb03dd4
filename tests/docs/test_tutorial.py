"""The tutorial on the data pipeline can be followed: its commands are run as they are written, in a copy of the
repository with a virtual environment of its own, its files and its notebook too, and they print what the page shows.

On the page, a block of `terminal` runs until the end; one of `sh` is run; one of `python` or `yaml` is a file, named by
its first line; one of `text` is what the block of `sh` before it prints, line by line, among others.

The copy's environment finds the packages of others in the one that runs the tests, so that nothing large is installed
twice. KafScale is installed into it by the page's own commands, and is on no other path: PYTHONPATH would hide that a
page's way of installing it is not enough, as it did once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from tests.docs.blocks import blocks_of

REPOSITORY = Path(__file__).parents[2]
TUTORIAL = REPOSITORY / "docs" / "tutorial"
PAGE = (TUTORIAL / "data-pipeline.md").read_text()

_FILE_NAME = re.compile(r"# (\S+)\n")
_READY = re.compile(r"kafscale is ready: kafka (\S+) admin (\S+)")
_NOT_COPIED = shutil.ignore_patterns(".*", "kafscale-data", "*.egg-info", "__pycache__", "build", "dist")
_MEASURED = re.compile(r"\d+(\.\d+)?( s\b| bytes)")  # which differs from run to run


@attrs.frozen(kw_only=True)
class Command:
    """A block that is run, and the lines that the page shows of what it prints."""

    text: str
    shown: tuple[str, ...] = ()


def steps() -> Iterator[Command]:
    """Of the page, in order. A file is written by a command, as its reader's editor does."""
    blocks = blocks_of(PAGE)
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


def test_the_extras_installed_by_the_tutorial_exist() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = re.findall(r"'\.\[(\w+)\]'", PAGE)
    assert installed
    assert set(installed) <= set(extras)


def test_the_notebook_is_stored_without_outputs() -> None:
    """Outputs would differ with each run, and be old soon."""
    notebook = json.loads((TUTORIAL / "readings.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_the_installed_spark_source_is_listed_on_pythons_path(tmp_path: Path) -> None:
    """Spark's workers list what there is on Python's path; the hook of an editable install was not on it."""
    program = "import pkgutil; print(*(each.name for each in pkgutil.iter_modules()))"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert "pyspark_kafscale" in done.stdout.split()


def make_clone(path: Path) -> None:
    """A copy of the repository, and a virtual environment where the Makefile looks for one."""
    shutil.copytree(REPOSITORY, path, ignore=_NOT_COPIED)
    environment = path / ".venv"
    venv.create(environment, with_pip=True)
    lib = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (lib / "packages-of-others.pth").write_text(sysconfig.get_path("purelib"))  # of which no .pth file counts
    for program in Path(sys.executable).parent.iterdir():  # as pip would have made them, had it installed the packages
        copy = environment / "bin" / program.name
        if not copy.exists() and program.is_file() and program.name != "kafscale":
            first, _, rest = program.read_bytes().partition(b"\n")
            if first.startswith(f"#!{Path(sys.executable).parent}/python".encode()):  # python or python3
                copy.write_bytes(f"#!{environment}/bin/python\n".encode() + rest)
                copy.chmod(0o755)


@contextmanager
def first_terminal(clone: Path, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Runs the page's broker; yields the addresses for clients and for the administrator."""
    command = next(text for language, text in blocks_of(PAGE) if language == "terminal")
    with subprocess.Popen(
        ["bash", "-c", command], cwd=clone, env=environ, text=True, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            found = next(filter(None, map(_READY.match, process.stdout)), None)
            assert found is not None, "the broker did not start"
            yield found[1], found[2]
        finally:
            os.killpg(process.pid, signal.SIGTERM)


@pytest.mark.spark
@pytest.mark.timeout(2400)  # two minutes where nothing else is at work
def test_the_tutorial_runs_and_prints_the_shown_output(tmp_path: Path) -> None:
    from tests.devtools.external.spark import skip_without_iceberg

    skip_without_iceberg()
    output, clone = tmp_path / "output", tmp_path / "clone"
    output.mkdir()
    make_clone(clone)
    given = ("KAFSCALE_", "PYTHON", "VIRTUAL_ENV", "PYSPARK_", "SPARK_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(given)}
    any_port = {"KAFSCALE_LISTEN": "127.0.0.1:0", "KAFSCALE_ADMIN_LISTEN": "127.0.0.1:0"}
    with first_terminal(clone, {**environ, **any_port}) as (kafka, admin):
        second = {**environ, "KAFSCALE_BOOTSTRAP": kafka, "KAFSCALE_ADMIN_LISTEN": admin}
        text = script(output).replace("127.0.0.1:9092", kafka)
        done = subprocess.run(["bash"], input=text, cwd=clone, env=second, text=True, check=False)
    printed = [path.read_text() for path in sorted(output.iterdir(), key=lambda path: int(path.name))]
    assert done.returncode == 0, printed[-1][-3000:]
    for step, text in zip(steps(), printed, strict=True):
        found = iter(lines_of(text))
        for line in step.shown:
            assert line in found, f"not printed, or not in this order: {line}\n{text[-3000:]}"
    assert (clone / "tour" / "readings.png").read_bytes().startswith(b"\x89PNG")
