"""Figures that do not depend on when a variant had its turn: alternating rounds, and the median of each figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from bench.claims.claim import Variant


def alternate(measures: Mapping[str, Callable[[], Mapping[str, float]]], rounds_count: int) -> Sequence[Variant]:
    """Measure each variant once, then all of them again, so that what else the machine does meets them all alike."""
    found: dict[str, list[Mapping[str, float]]] = {name: [] for name in measures}
    for _ in range(rounds_count):
        for name, measure in measures.items():
            found[name].append(measure())
    return [Variant(name=name, figures=_medians(rounds)) for name, rounds in found.items()]


def _medians(rounds: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    return {name: median(figures[name] for figures in rounds) for name in rounds[0]}


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of all lie; not a number without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")
