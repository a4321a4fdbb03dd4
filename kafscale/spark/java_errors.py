"""What an error of Java's says, as py4j and pyspark give it: a text of many lines, most of them stacks."""

from __future__ import annotations

import re

_NAMED = re.compile(r"(?:Exception|Error): ")  # the class of what was raised, in front of its message


def first_line(exc: Exception) -> str:
    """Return what an error says in one line: the first that names what Java has raised, or else its first one."""
    lines = [line.strip().removeprefix(": ") for line in str(exc).splitlines() if line.strip()]
    named = [line for line in lines if _NAMED.search(line)]
    return next(iter([*named, *lines]), type(exc).__name__)
