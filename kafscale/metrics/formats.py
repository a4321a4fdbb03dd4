"""The two formats of a page of metrics, and the choice between them by a request's Accept header.

Prometheus' text format 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/) and OpenMetrics 1.0.0
(https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md), in which a counter's family has no
`_total`, units have a line, and a last line tells a whole page from a part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

from kafscale.escaping import escaped_lines

UNITS: Final = ("bytes_per_second", "bytes", "seconds", "ratio")
ACCEPT_MAX_COUNT: Final = 32  # ranges of an Accept header that are read; Prometheus sends four
END_OF_OPENMETRICS: Final = "# EOF"


class PageFormat(Enum):
    """A format of pages; its value is the content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

    @classmethod
    def accepted(cls, accept: str | None) -> PageFormat:
        """Return the format that an Accept header prefers; text for a tie, for none, and for one that takes neither."""
        weights = {cls.TEXT: 0.0, cls.OPENMETRICS: 0.0}
        for part in (accept or "").split(",", ACCEPT_MAX_COUNT)[:ACCEPT_MAX_COUNT]:
            media, *parameters = (text.strip().lower() for text in part.split(";"))
            values = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
            version = values.get("version", "")
            if media == "application/openmetrics-text" and version in ("", "0.0.1", "1.0.0"):
                weights[cls.OPENMETRICS] = max(weights[cls.OPENMETRICS], _weight(values.get("q")))
            elif media in ("text/plain", "text/*", "*/*") and version in ("", "0.0.4"):
                weights[cls.TEXT] = max(weights[cls.TEXT], _weight(values.get("q")))
        return cls.OPENMETRICS if weights[cls.OPENMETRICS] > weights[cls.TEXT] else cls.TEXT

    @property
    def end(self) -> str:
        """Return the last line of a page, or nothing."""
        return f"{END_OF_OPENMETRICS}\n" if self is PageFormat.OPENMETRICS else ""

    def header(self, name: str, help: str, kind: str) -> Iterator[str]:
        if self is PageFormat.OPENMETRICS:
            name = name.removesuffix("_total") if kind == "counter" else name
        yield f"# HELP {name} {help}"
        yield f"# TYPE {name} {kind}"
        if self is PageFormat.OPENMETRICS and (unit := unit_of(name)):
            yield f"# UNIT {name} {unit}"


def _weight(quality: str | None) -> float:
    try:
        weight = 1.0 if quality is None else float(quality)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0


def unit_of(name: str) -> str:
    """Return the unit that ends a metric's name, or nothing for a number of things."""
    base = name.removesuffix("_total")
    return next((unit for unit in UNITS if base.endswith(f"_{unit}")), "")


def labels_text(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _escape(value: str) -> str:
    """Escape a label's value, which clients may have chosen."""
    value = escaped_lines(value).replace("\\", r"\\").replace('"', r"\"")
    return value.replace("\n", r"\n").replace("\t", r"\\t")


def number_text(value: float) -> str:
    if isinstance(value, int):
        return repr(int(value))  # a bool too
    if value.is_integer():
        return repr(int(value))
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


def bound_text(bound: float) -> str:
    """Return an upper bound of a bucket as OpenMetrics wants it, the same in both formats: it is a label."""
    return repr(float(bound))
