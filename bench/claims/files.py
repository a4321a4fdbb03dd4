"""The files of a run: `claim-k2.json` has all that the tables and the page show, `claim-k2.svg` is its plot, if any."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import cattrs

from bench.claims.claim import Claim, Finding, place_of
from bench.places import RESULTS
from bench.report import MachineFact, machine
from kafscale import __version__


@attrs.frozen(kw_only=True)
class Wording:
    """The text of a claim, and its source."""

    row: str
    source: str
    claim: str
    source_figure: str


@attrs.frozen(kw_only=True)
class Done:
    """An experiment that was run: what is claimed, what was found, where, and how long it took."""

    version: str
    machine: Mapping[str, MachineFact]
    seconds: float
    claim: Wording
    about: str
    finding: Finding

    @classmethod
    def of(cls, claim: Claim, finding: Finding, *, seconds: float) -> Done:
        wording = Wording(row=claim.row, source=claim.source, claim=claim.claim, source_figure=claim.source_figure)
        return cls(
            version=__version__,
            machine=machine(),
            seconds=round(seconds, 1),
            claim=wording,
            about=claim.about,
            finding=finding,
        )


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter()
    converter.register_structure_hook(MachineFact, lambda value, _: value)
    return converter


_converter = _make_converter()


def save(done: Done, directory: Path = RESULTS) -> Path:
    """Write both files. Returns the path of the JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"claim-{done.claim.row}.json"
    path.write_text(json.dumps(_converter.unstructure(done), indent=1) + "\n")
    plot = path.with_suffix(".svg")
    plot.unlink(missing_ok=True)
    if done.finding.plot is not None:
        plot.write_text(done.finding.plot.svg())
    return path


def saved(directory: Path = RESULTS) -> Sequence[Done]:
    """Return what is there, by row."""
    found = [_converter.structure(json.loads(path.read_text()), Done) for path in directory.glob("claim-*.json")]
    return sorted(found, key=lambda each: place_of(each.claim.row))
