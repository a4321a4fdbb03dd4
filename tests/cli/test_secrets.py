"""No command takes a secret as an argument, which everybody sees who lists the processes, without another way."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from kafscale.cli.main import cli
from kafscale.cli.options import SPARK_SETTING

_SECRET = re.compile(r"password|secret|token|credential|private|basic auth|\bkey\b", re.IGNORECASE)


def _options(
    command: click.Command, path: tuple[str, ...], context: click.Context
) -> Iterator[tuple[str, click.Parameter]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _options(found, (*path, name), context)
        return
    for parameter in command.params:
        yield " ".join(path), parameter


OPTIONS = list(_options(cli, (), click.Context(cli)))


def test_there_are_options_of_all_commands() -> None:
    assert len({command for command, _ in OPTIONS}) > 25
    assert {"users add", "sql query", "pipeline run", "flush"} <= {command for command, _ in OPTIONS}


def test_options_of_secrets_name_files() -> None:
    named = {flag for _, parameter in OPTIONS for flag in parameter.opts if _SECRET.search(flag.replace("-", " "))}
    assert {flag for flag in named if not flag.endswith("-file")} == {"--key-separator", "--key-format"}
    assert {"--password-file", "--admin-token-file", "--secret-key-file", "--ssl-key-password-file"} <= named


@pytest.mark.parametrize("command", ["sql query", "sql serve", "pipeline run", "pipeline maintain", "pipeline status"])
def test_spark_settings_can_come_from_files(command: str) -> None:
    taken = {flag: each.type for name, each in OPTIONS for flag in each.opts if name == command}
    for flag in ("--conf", "--option"):
        assert taken.get(flag, SPARK_SETTING) is SPARK_SETTING
    assert "--conf" in taken
