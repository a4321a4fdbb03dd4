"""One page of metrics from those of several brokers, in Prometheus' text format, version 0.0.4.

Each sample gets a label `broker`. Samples of a family have to be together, below its help and type, which are there
once. A label of that name that a broker gives itself is `exported_broker` here, as Prometheus would call it.

May not import anything of KafScale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

LABEL = "broker"
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_NAME = re.compile(r"[a-zA-Z_:][\w:]*")


@attrs.define(eq=False, repr=False)
class _Family:
    header: dict[str, str] = attrs.field(factory=dict)
    samples: list[str] = attrs.field(factory=list)


def merged(pages: Mapping[int, str]) -> str:
    """Merge the pages, which are given by broker id."""
    families: dict[str, _Family] = {}
    for broker_id, page in pages.items():
        family = _Family()
        for line in page.split("\n"):  # not at what else ends a line for Python: labels may have it in them
            if line.startswith(("# HELP ", "# TYPE ")):
                _, kind, name, *_ = line.split(" ", 3)
                family = families.setdefault(name, _Family())
                family.header.setdefault(kind, line)
            elif line and not line.startswith("#"):
                family.samples.append(_labelled(line, broker_id))
    written = (line for family in families.values() for line in (*family.header.values(), *family.samples))
    return "".join(f"{line}\n" for line in written)


def _labelled(sample: str, broker_id: int) -> str:
    match = _NAME.match(sample)
    name = match[0] if match else ""
    rest = sample[len(name) :]
    if not rest.startswith("{"):
        return f'{name}{{{LABEL}="{broker_id}"}}{rest}'
    if f'{LABEL}="' in rest:
        rest = _LABEL.sub(lambda found: f"exported_{found[0]}" if found[1] == LABEL else found[0], rest)
    return f'{name}{{{LABEL}="{broker_id}",{rest[1:]}'
