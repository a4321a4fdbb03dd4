"""The findings of a run so far: a JSON file, written anew after each measurement, from which a cut run goes on."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import attrs
import cattrs

from bench.figures import middle
from bench.report import machine

FILE_NAME = "cluster.json"

Key = tuple[str, str, str, int]  # group, load, system, round


@attrs.frozen(kw_only=True)
class Row:
    """One round of a load on a system. `figures` are by the headings of the columns that they are in."""

    group: str
    load: str
    system: str
    round: int
    at: str
    load_average: float  # before it
    figures: Mapping[str, float]

    @property
    def key(self) -> Key:
        return self.group, self.load, self.system, self.round


@attrs.frozen(kw_only=True)
class Failure:
    """A measurement that failed; the next run tries it again."""

    group: str
    load: str
    system: str
    round: int
    error: str

    @property
    def key(self) -> Key:
        return self.group, self.load, self.system, self.round


@attrs.define(eq=False)
class Findings:
    """Everything that was found on one machine, and the file that it is in."""

    machine: Mapping[str, Any]
    rows: list[Row] = attrs.field(factory=list)
    failures: list[Failure] = attrs.field(factory=list)

    @classmethod
    def begin(cls) -> Findings:
        """Return empty ones, of this machine."""
        return cls({name: value for name, value in machine().items() if name != "load_average"})

    @classmethod
    def read(cls, path: Path) -> Findings:
        """Return what is in a file. Raises FileNotFoundError."""
        return _converter.structure(json.loads(path.read_text()), cls)

    @property
    def done(self) -> Collection[Key]:
        return {row.key for row in self.rows}

    def add(self, found: Row | Failure, path: Path) -> None:
        """Note a measurement, in place of an earlier one of the same, and write the file in one step."""
        self.failures = [failure for failure in self.failures if failure.key != found.key]
        if isinstance(found, Row):
            self.rows = [*(row for row in self.rows if row.key != found.key), found]
        else:
            self.failures.append(found)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(_converter.unstructure(self), indent=1) + "\n")
        new.replace(path)

    def of(self, group: str) -> Mapping[tuple[str, str], Mapping[str, float]]:
        """Return the medians of the rounds by load and system."""
        rounds: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            if row.group == group:
                rounds.setdefault((row.load, row.system), []).append(row)
        return {key: _medians(figures) for key, figures in rounds.items()}


def _medians(rows: Collection[Row]) -> Mapping[str, float]:
    names = dict.fromkeys(name for row in rows for name in row.figures)
    medians = {name: middle([row.figures.get(name) for row in rows]) for name in names}
    return {name: value for name, value in medians.items() if value is not None}


def now() -> tuple[str, float]:
    """Return when it is, and the load average."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), round(os.getloadavg()[0], 1)


def _make_converter() -> cattrs.Converter:
    """JSON has no NaN."""
    converter = cattrs.Converter()
    converter.register_unstructure_hook(float, lambda value: None if math.isnan(value) else round(value, 6))
    converter.register_structure_hook(float, lambda value, _: math.nan if value is None else float(value))
    return converter


_converter = _make_converter()
