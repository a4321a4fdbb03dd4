"""The reference page of the source's options.

python -m kafscale.spark.source.reference > docs/reference/spark-options.md
"""

from __future__ import annotations

from kafscale.spark.source.options import ACCEPTED, OPTIONS

HEADINGS = {
    "read": "For batches and streams",
    "batch": "For batches alone",
    "stream": "For streams alone",
    "write": "For writing",
}
INTRODUCTION = """# Options of Spark's reader and writer

Made from the code by `python -m kafscale.spark.source.reference`. Names are case-insensitive. Those that Spark's Kafka
source has mean here what they mean there; an option that there is not is an error. [How to read and
write](../how-to/spark.md)
shows them at work."""


def reference() -> str:
    parts = [INTRODUCTION]
    for used_in, heading in HEADINGS.items():
        rows = [f"| `{option.name}` | {option.default or ''} | {option.doc} |" for option in OPTIONS[used_in]]
        parts.append("\n".join([f"## {heading}", "", "| option | default | what it does |", "|---|---|---|", *rows]))
    parts.append(f"Accepted, and without effect: {', '.join(f'`{name}`' for name in ACCEPTED)}.")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
