"""Places for results: those that are committed, pages made from them, and results that stay on this machine."""

from __future__ import annotations

import os
from pathlib import Path

RESULTS = Path(__file__).parent / "results"  # in git: JSON, plots and profiles that the pages are made from
LOCAL_RESULTS = RESULTS / "local"  # not in git: everything else that is measured here
PAGES = Path(__file__).parents[1] / "docs" / "benchmarks"


def page_directory(results: Path) -> Path:
    """Return where the page made from `results` goes: into the documentation for committed ones, beside any others."""
    return PAGES if results == RESULTS else results


def link(page: Path, target: Path) -> str:
    """The path by which a Markdown page refers to another file, whether or not either exists yet."""
    return Path(os.path.relpath(target, page.parent)).as_posix()
