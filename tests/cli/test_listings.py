"""Every command that lists has --json with the same rows, fits narrow terminals, and has the documented exit codes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import click
import pytest

from kafscale.cli.main import cli, run
from tests.cli.terminal import in_terminal

WITHOUT_ROWS = """
serve, console, completion, sql serve, pipeline run, topics alter, topics create, topics delete, brokers drain,
brokers remove, brokers replace, brokers undrain, brokers unshare, partitions move, groups delete, transactions abort,
users add, users remove, acls add, acls load
"""


def commands(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}".strip())
    else:
        yield path, command


def test_every_command_that_lists_has_json() -> None:
    without = {path for path, found in commands(cli) if not any("--json" in each.opts for each in found.params)}
    assert without == {name.strip() for name in WITHOUT_ROWS.replace("\n", " ").split(",")}


@pytest.mark.parametrize("command", ["topics list", "groups list", "brokers list", "partitions list", "users list"])
def test_json_and_the_columns_of_a_pipe_have_the_same_rows(kafscale_broker: Any, capfd: Any, command: str) -> None:
    for topic in ("a", "b"):
        kafscale_broker.create_topic(topic)
    arguments = [*command.split(), "--bootstrap", kafscale_broker.bootstrap]
    assert run([*arguments, "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert run(arguments) == 0
    lines = capfd.readouterr().out.splitlines()
    titles = lines[0].split("  ")
    assert len(lines) - 1 == len(rows)
    assert all(len(row) == len([title for title in titles if title]) for row in rows)
    for line, row in zip(lines[1:], rows, strict=True):
        assert line.split()[0] == str(next(iter(row.values())))


@pytest.mark.parametrize("columns", [20, 40, 60])
@pytest.mark.parametrize("command", ["topics list", "brokers list", "partitions list", "top --once --interval 10ms"])
def test_a_narrow_terminal_shows_whole_names_without_color(kafscale_broker: Any, command: str, columns: int) -> None:
    kafscale_broker.create_topic("orders-of-the-day")
    arguments = [*command.split(), "--bootstrap", kafscale_broker.bootstrap]
    with in_terminal(arguments, columns=columns, NO_COLOR="1") as terminal:
        assert terminal.wait() == 0
        wanted = "orders-of-the-day" if command != "brokers list" else kafscale_broker.bootstrap
        assert wanted in terminal.text, "cut by the command; a terminal wraps long lines by itself"
        assert b"\x1b[3" not in terminal.written, "a color, though NO_COLOR is set"


def test_exit_codes(kafscale_broker: Any) -> None:
    """As the reference of the commands lists them; 3 is tested with brokers that are fenced."""
    bootstrap = ["--bootstrap", kafscale_broker.bootstrap]
    kafscale_broker.create_topic("orders")
    for code, arguments in (
        (0, ["topics", "list", *bootstrap]),
        (1, ["topics", "describe", "nowhere", *bootstrap]),
        (1, ["topics", "list", "--bootstrap", "127.0.0.1:1"]),
        (2, ["topics", "list", "--nonsense"]),
        (2, ["consume", "orders", "--offset", "5", *bootstrap]),
    ):
        with in_terminal(arguments) as terminal:
            assert terminal.wait() == code, terminal.text
    with in_terminal(["top", *bootstrap]) as terminal:
        terminal.wait_for("by rate")
        os.kill(terminal.pid, signal.SIGINT)
        assert terminal.wait() == 130
