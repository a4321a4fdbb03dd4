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
_COMMAND = re.compile(r"\bpip install ('[^']*(?:kafscale|\.\[)[^']*'|\S*kafscale[^\s`]*)")
_BY_NAME = re.compile(r"(?:pip|pipx|tool) install '?kafscale\b(?!-)|uvx kafscale\b|docker run [^`\n]*\bkafscale\b")
INSTALL = REPOSITORY / "docs" / "how-to" / "install.md"
RELEASED = "## From the first release on"
_EXTRAS = """
import importlib.metadata as metadata
found = metadata.metadata("kafscale")
print(found["Version"], *found.get_all("Provides-Extra"))
"""


def _before_release(page: Path) -> str:
    """Return a page without the section of commands that work from the first release on, and images that it builds."""
    return re.sub(r"docker build -t kafscale .\n.*", "", page.read_text().partition(RELEASED)[0])


def test_commands_by_name_alone_are_in_one_section() -> None:
    """`pip install kafscale` finds nothing until the first release."""
    _, heading, after = INSTALL.read_text().partition(RELEASED)
    assert heading
    assert len(_BY_NAME.findall(after)) == 4
    assert not {page.name for page in PAGES if _BY_NAME.search(_before_release(page))}


def commands() -> dict[str, set[str]]:
    """Return each command that installs KafScale, and the pages that have it."""
    found: dict[str, set[str]] = {}
    for page in PAGES:
        for each in _COMMAND.finditer(_before_release(page)):
            found.setdefault(each[0], set()).add(page.name)
    return found


def test_pages_install_only_the_local_wheel_or_checkout() -> None:
    """`pip install 'kafscale[spark]'` on three pages found no such package."""
    found = commands()
    assert set().union(*found.values()) >= {"spark.md", "iceberg.md", "sql.md", "install.md"}
    wheel = re.escape(f"kafscale-{kafscale.__version__}-py3-none-any.whl")
    for command in found:
        extras = r"\[[\w,]+\]"
        assert re.fullmatch(rf"pip install (?:'(?:(?:dist/)?{wheel}|\.){extras}'|dist/kafscale-\*\.whl)", command)


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
        assert {*command.partition("[")[2].partition("]")[0].split(",")} - {""} <= {*extras}
