"""The commands by which the pages install KafScale work: they are run as they are written, in a clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import kafscale

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
_COMMAND = re.compile(r"pip install ('[^']*(?:kafscale|\.\[)[^']*'|\S*kafscale\S*)")
_EXTRAS = """
import importlib.metadata as metadata
found = metadata.metadata("kafscale")
print(found["Version"], *found.get_all("Provides-Extra"))
"""


def commands() -> dict[str, set[str]]:
    """Return each command that installs KafScale, and the pages that have it."""
    found: dict[str, set[str]] = {}
    for page in PAGES:
        for each in _COMMAND.finditer(page.read_text()):
            found.setdefault(each[0], set()).add(page.name)
    return found


def test_pages_install_only_the_local_wheel_or_checkout() -> None:
    """`pip install 'kafscale[spark]'` on three pages found no such package."""
    found = commands()
    assert set().union(*found.values()) >= {"spark.md", "iceberg.md", "sql.md"}
    wheel = re.escape(f"kafscale-{kafscale.__version__}-py3-none-any.whl")
    for command in found:
        assert re.fullmatch(rf"pip install '(?:(?:dist/)?{wheel}|\.)\[\w+\]'", command)


@pytest.mark.faults
@pytest.mark.timeout(600)  # it builds and installs; what it needs for that comes from the package index
def test_the_pages_commands_install_the_extras_that_they_name(tmp_path: Path) -> None:
    """Without what the extras need: `make test-spark` installs that."""
    clone = tmp_path / "clone"
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    for name in listed.stdout.split("\n"):
        if name.partition("/")[0] in ("kafscale", "pyspark_kafscale") or ("/" not in name and name):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, clone / name)
    subprocess.run(["make", "wheel", f"VENV={sys.prefix}"], cwd=clone, check=True)
    for number, command in enumerate(commands()):
        environment = tmp_path / str(number)
        venv.create(environment)
        directory = clone if "/" in command or "'.[" in command else clone / "dist"
        python = str(environment / "bin" / "python")
        settings = {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}", "PIP_NO_DEPS": "1", "PIP_PYTHON": python}
        subprocess.run(["bash", "-euc", command], cwd=directory, check=True, env={**os.environ, **settings})
        told = subprocess.run([python, "-c", _EXTRAS], check=True, capture_output=True, text=True, cwd=tmp_path)
        version, *extras = told.stdout.split()
        assert version == kafscale.__version__
        assert command[command.index("[") + 1 : command.index("]")] in extras
