"""The command `kafscale`: finds the subcommand, and turns every expected error into one line and an exit code.

    exit 0    done
    exit 1    failed: the broker can't start, the store or another broker refused, stdout is full
    exit 2    the command or a setting is wrong
    exit 3    the other brokers declared this one dead; `kafscale serve --processes` starts it again
    exit 130  interrupted

Errors are one line on stderr. An unexpected exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

import kafscale
from kafscale.cli.output import OutputLost, ReaderGone, discard_stdout, open_standard_files, say
from kafscale.errors import ConfigError, KafScaleError
from kafscale.process_variables import SUPERVISOR_VARIABLE

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class WholeWords(click.HelpFormatter):
    """Help with line breaks at spaces only; textwrap would break --from-beginning at its hyphens."""

    _HYPHEN = "\ue000"  # a character that is part of a word

    def write(self, string: str) -> None:
        super().write(string.replace(self._HYPHEN, "-"))

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", self._HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        whole = [(term, text.replace("-", self._HYPHEN)) for term, text in rows]
        super().write_dl(whole, col_max, col_spacing)


click.Context.formatter_class = WholeWords


# The summary of a command is here too, as `kafscale --help` imports none of them.
COMMANDS: Mapping[str, str] = {
    "serve": "Run a broker, or several with --processes.",
    "config": "Show the value of each option and its source.",
    "topics": "List, create, describe, change and delete topics.",
    "brokers": "List, drain, replace and remove brokers.",
    "partitions": "List, move and balance partitions.",
    "groups": "List, describe, reset and delete groups.",
    "transactions": "List, describe and abort transactions.",
    "users": "Add, list and remove users.",
    "acls": "Add, list, load and remove ACLs.",
    "produce": "Write the lines of stdin to TOPIC.",
    "consume": "Write the records of TOPIC to stdout.",
    "top": "Show brokers, throughput and lag, refreshed each second.",
    "flush": "Flush acknowledged records to the bucket.",
    "inspect": "Print and check an object or file.",
    "adopt": "Register topics that the metadata lacks.",
    "verify": "Check every object of a bucket.",
    "storage": "Show the size and cost of each topic.",
    "sql": "Query topics with Spark SQL.",
    "pipeline": "Keep Iceberg tables up to date.",
    "console": "Serve web pages of a cluster.",
    "completion": "Print the completion script of a shell.",
}


def load_command(name: str) -> click.Command:
    """Import the module of a command, and no other, so that a command starts quickly."""
    match name:
        case "serve":
            from kafscale.cli.serve import command
        case "config":
            from kafscale.cli.config import command
        case "topics":
            from kafscale.cli.topics import command
        case "brokers":
            from kafscale.cli.brokers import command
        case "partitions":
            from kafscale.cli.partitions import command
        case "groups":
            from kafscale.cli.groups import command
        case "transactions":
            from kafscale.cli.transactions import command
        case "users":
            from kafscale.cli.users import command
        case "acls":
            from kafscale.cli.acls import command
        case "produce":
            from kafscale.cli.produce import command
        case "consume":
            from kafscale.cli.consume import command
        case "top":
            from kafscale.cli.top import command
        case "flush":
            from kafscale.cli.flush import command
        case "inspect":
            from kafscale.cli.inspect import command
        case "adopt":
            from kafscale.cli.adopt import command
        case "verify":
            from kafscale.cli.verify import command
        case "storage":
            from kafscale.cli.storage import command
        case "sql":
            from kafscale.cli.sql import command
        case "pipeline":
            from kafscale.cli.pipeline import command
        case "console":
            from kafscale.cli.console import command
        case "completion":
            from kafscale.cli.completion import command
        case _:
            raise AssertionError(name)
    return command


class LazyGroup(click.Group):
    """The commands of `kafscale`: listed and completed from their summaries, imported when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(kafscale.__version__, prog_name="kafscale")
def cli() -> None:
    """A Kafka broker whose log lives in object storage."""


def main() -> None:
    _end_with_parent()
    open_standard_files()
    sys.exit(run(sys.argv[1:]))


def _end_with_parent() -> None:
    """Let a process of a supervisor or console end with it."""
    parent_pid = os.environ.get(SUPERVISOR_VARIABLE)
    if parent_pid is not None:
        from kafscale.concurrency.process import end_with

        end_with(int(parent_pid))


def run(arguments: Sequence[str]) -> int:
    code = _run(arguments)
    try:
        sys.stdout.flush()
    except OutputLost as exc:
        discard_stdout()
        return code or _fail_of_output(exc)
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        # Not standalone, as click would print a block of several lines for a wrong option.
        returned = cli.main(list(arguments), prog_name="kafscale", standalone_mode=False)
        return returned if isinstance(returned, int) else 0
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.format_message(), err=True)
        return 2
    except click.UsageError as exc:
        command = exc.ctx.command_path if exc.ctx else "kafscale"
        return _fail(f"{command}: {_one_line(_without_option(exc) or _with_commands(exc) or exc.format_message())}", 2)
    except click.ClickException as exc:
        return _fail(f"kafscale: {_one_line(exc.format_message())}", 1)
    except BaseException as exc:
        if all(isinstance(leaf, click.Abort | KeyboardInterrupt) for leaf in _leaves(exc)):
            return 130
        expected = expected_error(exc)
        if expected is None:
            raise
        if isinstance(expected, OutputLost):
            return _fail_of_output(expected)
        return _fail(f"kafscale: {_one_line(str(expected))}", 2 if isinstance(expected, ConfigError) else 1)


def _without_option(exc: click.UsageError) -> str | None:
    """Return the message for a removed option."""
    from kafscale.config.sources import REMOVED

    name = exc.option_name if isinstance(exc, click.NoSuchOption) else ""
    sentence = REMOVED.get(name.removeprefix("--"))
    return sentence and f"{name}: this option was removed; {sentence}"


def _with_commands(exc: click.UsageError) -> str | None:
    """Return the message for an unknown command, with similar names."""
    import difflib

    found = re.match(r"No such command '(.*)'\.", exc.message, re.DOTALL)
    if found is None or exc.ctx is None or not isinstance(exc.ctx.command, click.Group):
        return None
    nearest = difflib.get_close_matches(found[1], exc.ctx.command.list_commands(exc.ctx))
    names = " or ".join(f"'{name}'" for name in nearest)
    return f"No such command '{found[1]}'. " + (
        f"Did you mean {names}?" if nearest else f"`{exc.ctx.command_path} --help` lists the commands."
    )


def expected_error(exc: BaseException) -> KafScaleError | None:
    """Return the error to report; None if `exc` is, or contains, an unexpected one.

    Nurseries raise groups. Of several errors the first is reported, since the others usually follow from it.
    """
    leaves = list(_leaves(exc))
    expected = [leaf for leaf in leaves if isinstance(leaf, KafScaleError)]
    return expected[0] if expected and len(expected) == len(leaves) else None


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        for inner in exc.exceptions:
            yield from _leaves(inner)
    else:
        yield exc


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _fail(line: str, code: int) -> int:
    with suppress(OSError):  # stderr may be on a full disk too
        say(line, err=True)
    return code


def _fail_of_output(lost: OutputLost) -> int:
    return 1 if isinstance(lost, ReaderGone) else _fail(f"kafscale: {lost}", 1)
