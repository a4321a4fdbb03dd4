"""Makes docs/reference/cli.md from the commands: what each does, its arguments and its options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from kafscale.cli.main import cli
from kafscale.config import options

_INTRODUCTION = """\
# Commands

Made from the code by `python -m tests.docs.reference_pages`; `kafscale COMMAND --help` shows the same.

| exit code | means |
|---|---|
| 0 | done |
| 1 | failed: one line on stderr says why |
| 2 | the command or a setting is wrong |
| 3 | `serve`: the other brokers declared this one dead |
| 130 | interrupted |

Options of a broker, such as `--store`, are explained on [their own page](options.md).
"""


def cli_page() -> str:
    broker = {option.flag for option in options()}
    context = click.Context(cli, info_name="kafscale")
    sections = [section for section in _sections(cli, context, broker, level=1) if section]
    return "\n".join([_INTRODUCTION, *sections])


def _sections(command: click.Command, context: click.Context, broker: set[str], level: int) -> Iterator[str]:
    if context.parent is not None:
        yield "\n".join(_section(command, context, broker, level))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                below_context = click.Context(below, info_name=name, parent=context)
                yield from _sections(below, below_context, broker, level + 1)


def _section(command: click.Command, context: click.Context, broker: set[str], level: int) -> Iterator[str]:
    yield f"{'#' * level} {context.command_path}\n"
    if not isinstance(command, click.Group):
        yield f"```\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    yield f"{inspect.cleandoc(command.help or '').partition(chr(12))[0].strip()}\n".replace("\b\n", "")
    if isinstance(command, click.Group):
        return
    rows, of_broker = [], []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or parameter.opts[-1] == "--help":
            continue
        flag = parameter.opts[0]
        if flag in broker:
            of_broker.append(flag)
        else:
            rows.append(f"| `{_cell(record[0])}` | {_cell(record[1])} |")
    if rows:
        yield "\n".join(["| option | what it does |", "|---|---|", *rows, ""])
    if of_broker:
        yield f"Options of a broker: {_listed(of_broker, broker)}.\n"


def _listed(flags: list[str], broker: set[str]) -> str:
    return "[all](options.md)" if len(flags) == len(broker) else ", ".join(f"`{flag}`" for flag in sorted(flags))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("[", "\\[") if "`" not in text else " ".join(text.split())
