"""Writes `docs/reference/sql-options.md`: `python -m kafscale.cli.sql_reference >docs/reference/sql-options.md`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from kafscale.cli.sql import command

INTRODUCTION = """# Options of kafscale sql

Made from the code by `python -m kafscale.cli.sql_reference`. A flag beats the environment. Options of the store are
those of [`kafscale serve`](options.md), also in the TOML file that `--config` names.
[How to query topics](../how-to/sql.md) shows them at work."""
TITLES = {"query": "kafscale sql [STATEMENT]"}


def reference() -> str:
    """The page."""
    parts = [INTRODUCTION]
    for name, each in command.commands.items():
        rows = "\n".join(_rows(each))
        title = TITLES.get(name, f"kafscale sql {name}")
        parts.append(f"## {title}\n\n| option | variable and default | what it does |\n|---|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


def _rows(of: click.Command) -> Iterator[str]:
    for option in of.params:
        if isinstance(option, click.Option) and option.help is not None:
            text, _, details = option.help.partition("  [")
            yield f"| `{option.opts[0]}` | {details.removesuffix(']')} | {text} |".replace("[", "\\[")


if __name__ == "__main__":
    print(reference(), end="")
