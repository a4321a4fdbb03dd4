"""`make release` in a throw-away clone: what it refuses, and what it makes of the clone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kafscale
from tests.packages.environments import environ, make_clone, run, tracked_files

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(2400)]

AUTHOR = {f"GIT_{who}_{what}": "test@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
SETTINGS = {**AUTHOR, "DOCKER_HOST": "unix:///no/such/socket"}  # an image takes minutes


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_clone(tmp_path_factory.mktemp("release"), tracked_files())
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "all: begin"]):
        run(["git", *command], cwd=path, **SETTINGS)
    return path


def release(clone: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "release", f"VENV={sys.prefix}", f"VERSION={version}"]
    return subprocess.run(command, cwd=clone, env=environ(**SETTINGS), capture_output=True, text=True, check=False)


def git(clone: Path, *arguments: str) -> str:
    return run(["git", *arguments], cwd=clone, **SETTINGS)


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("", "VERSION='' is not X.Y.Z"),
        ("v1.0", "VERSION='v1.0' is not X.Y.Z"),
        (kafscale.__version__, "is not later than"),
        ("0.0.9", "is not later than"),
    ],
)
def test_a_wrong_version_is_refused(clone: Path, version: str, told: str) -> None:
    done = release(clone, version)
    assert done.returncode != 0
    assert told in done.stderr
    assert git(clone, "status", "--porcelain") == git(clone, "tag") == ""


def test_a_changed_tree_is_refused_and_left_alone(clone: Path) -> None:
    (clone / "new.txt").touch()
    done = release(clone, "99.0.0")
    assert "there are changes that are not committed" in done.stderr
    assert (done.returncode, git(clone, "tag"), git(clone, "status", "--porcelain")) == (2, "", "?? new.txt\n")
    (clone / "new.txt").unlink()


def test_a_release_has_version_changelog_tag_packages_and_checksums(clone: Path) -> None:
    fragments = [path for path in (clone / "newsfragments").iterdir() if path.name != "README.md"]
    texts = [path.read_text().strip() for path in fragments]
    done = release(clone, "99.0.0")
    assert done.returncode == 0, done.stderr
    assert "no image, as no Docker engine answers" in done.stdout
    assert git(clone, "describe", "--exact-match").strip() == "v99.0.0"
    assert git(clone, "status", "--porcelain") == ""
    changes = (clone / "CHANGELOG.md").read_text()
    assert re.search(r"^## \[Unreleased\]\n+## \[99\.0\.0\] - \d{4}-\d\d-\d\d\n", changes, re.MULTILINE)
    section = " ".join(changes.split())
    assert all(" ".join(text.split()) in section for text in texts)
    assert not any(path.exists() for path in fragments)
    assert "kafscale-99.0.0-py3-none-any.whl" in (clone / "docs" / "how-to" / "install.md").read_text()
    assert f"kafscale-{kafscale.__version__}" not in git(clone, "grep", "-h", "kafscale-", "--", "docs", "README.md")
    assert "appVersion: 99.0.0\n" in (clone / "deploy" / "helm" / "kafscale" / "Chart.yaml").read_text()
    names = {"kafscale-99.0.0-py3-none-any.whl", "kafscale-99.0.0.tar.gz"}
    assert {path.name for path in (clone / "dist").iterdir()} - {".gitignore"} == {*names, "SHA256SUMS"}
    assert run(["sha256sum", "--check", "SHA256SUMS"], cwd=clone / "dist").count(": OK\n") == 2
    again = release(clone, "99.0.0")
    assert "the tag v99.0.0 exists" in again.stderr
