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

from bench.figures import Result
from bench.options import RunOptions
from bench.peers.plan import Key, Turn
from bench.report import machine
from kafscale import __version__

FILE_NAME = "peers.json"


@attrs.frozen(kw_only=True)
class Part:
    """A command that measured something: when it began, with what, and how busy the machine was."""

    began: str
    version: str
    seconds: float
    warm_up_seconds: float
    broker_options: tuple[str, ...]
    load_average: tuple[float, ...]


@attrs.frozen(kw_only=True)
class Failure:
    """A measurement that failed; it is missing, so the next run tries it again."""

    load: str
    broker: str
    round: int
    error: str

    @property
    def key(self) -> Key:
        return self.load, self.broker, self.round


@attrs.define(kw_only=True)
class Findings:
    """Everything that was found on one machine."""

    machine: Mapping[str, Any]
    parts: list[Part] = attrs.field(factory=list)
    results: list[Result] = attrs.field(factory=list)
    failures: list[Failure] = attrs.field(factory=list)


@attrs.define(eq=False)
class Journal:
    """The findings, and the file they are in."""

    path: Path
    findings: Findings

    @classmethod
    def begin(cls, path: Path) -> Journal:
        """An empty one; the file is replaced by the first result."""
        return cls(path, Findings(machine=_machine()))

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Return what is in the file. Raises FileNotFoundError."""
        return cls(path, _converter.structure(json.loads(path.read_text()), Findings))

    @property
    def is_of_this_machine(self) -> bool:
        return dict(self.findings.machine) == _machine()

    @property
    def done(self) -> Collection[Key]:
        return {(result.point, result.broker, result.round) for result in self.findings.results}

    def begin_part(self, options: RunOptions) -> None:
        """Note that from here on it is measured with these options."""
        part = Part(
            began=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            version=__version__,
            seconds=options.seconds,
            warm_up_seconds=options.warm_up_seconds,
            broker_options=tuple(options.broker_options),
            load_average=tuple(round(average, 2) for average in os.getloadavg()),
        )
        self.findings.parts.append(part)

    def add(self, result: Result) -> None:
        """A measurement is done."""
        self._forget_failure((result.point, result.broker, result.round))
        self.findings.results.append(result)
        self._write()

    def fail(self, turn: Turn, error: str) -> None:
        """A measurement did not come about."""
        self._forget_failure(turn.key)
        load, broker, round = turn.key
        self.findings.failures.append(Failure(load=load, broker=broker, round=round, error=error))
        self._write()

    def _forget_failure(self, key: Key) -> None:
        self.findings.failures = [failure for failure in self.findings.failures if failure.key != key]

    def _write(self) -> None:
        """Write the file in one step, so that a cut run leaves the file as it was or as it should be."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(_converter.unstructure(self.findings), indent=1) + "\n")
        new.replace(self.path)


def _machine() -> dict[str, Any]:
    """Return what does not change while a run goes on."""
    return {name: value for name, value in machine().items() if name != "load_average"}


def _make_converter() -> cattrs.Converter:
    """JSON has no NaN, which stands for a latency that a tool does not tell."""
    converter = cattrs.Converter()
    converter.register_unstructure_hook(float, lambda value: None if math.isnan(value) else value)
    converter.register_structure_hook(float, lambda value, _: math.nan if value is None else float(value))
    return converter


_converter = _make_converter()
