"""Rows of the table, and the modules that they come from."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping, Sequence

import attrs

import bench.claims
from bench.claims.plot import Plot

_ROW_MODULE = re.compile(r"[a-z]\d+")


@attrs.frozen(kw_only=True)
class Variant:
    """One run of the experiment: what was set, and what came out, by name with the unit in it."""

    name: str
    figures: Mapping[str, float]


@attrs.frozen(kw_only=True)
class Finding:
    """The result of an experiment: `ours`, to put beside the source's figure, and whether the claim holds."""

    ours: str
    is_shown: bool
    variants: Sequence[Variant]
    plot: Plot | None = None


@attrs.frozen(kw_only=True)
class Claim:
    """A claim, what its source says of it, and the experiment.

    find_missing: what this machine lacks for it, as a text; None if nothing.
    """

    row: str
    source: str
    claim: str
    source_figure: str
    run: Callable[[], Finding]
    find_missing: Callable[[], str | None] = lambda: None

    @property
    def about(self) -> str:
        """Return how it is shown: what the row's module says of itself, without the claim."""
        module = sys.modules[self.run.__module__]
        return " ".join((module.__doc__ or "").partition("\n\n")[2].split())


def known_rows() -> Sequence[str]:
    """The rows that have a module, in order."""
    names = [module.name for module in pkgutil.iter_modules(bench.claims.__path__)]
    return sorted((name for name in names if _ROW_MODULE.fullmatch(name)), key=place_of)


def place_of(row: str) -> tuple[str, int]:
    """Return the key by which rows are sorted; what is shown beside the table, and no row of it, comes last."""
    return (row[0], int(row[1:])) if _ROW_MODULE.fullmatch(row) else ("~", 0)


def load(row: str) -> Claim:
    """The claim of a row. Raises ModuleNotFoundError."""
    claim: Claim = importlib.import_module(f"bench.claims.{row}").CLAIM
    return claim
