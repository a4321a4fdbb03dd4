"""Times and settings as options."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kafscale.cli.main import cli, run
from kafscale.cli.options import INDEX, ListOption, parse_setting, parse_spark_setting, parse_time
from kafscale.cli.pipeline import migrate_command
from kafscale.cli.sql import parse_catalog


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        ("1767225600000", 1767225600000),
        ("2026-01-01", 1767225600000),
        ("2026-01-01T00:00:00Z", 1767225600000),
        ("2026-01-01T01:00:00.250+01:00", 1767225600250),
    ],
)
def test_a_time_without_an_offset_is_utc(text: str, time_ms: int) -> None:
    assert parse_time(text) == time_ms


def test_a_duration_is_that_long_ago() -> None:
    assert 0 <= time.time() * 1000 - 900_000 - parse_time("15m") < 60_000


@pytest.mark.parametrize("text", ["", "yesterday", "15", "2026-13-01", "-5"])
def test_a_malformed_time_tells_the_allowed_forms(text: str) -> None:
    if text == "15":
        assert parse_time(text) == 15
        return
    with pytest.raises(ValueError, match="is not a time; allowed: 2026-01-31T12:00:00Z"):
        parse_time(text)


def test_a_setting_is_split_at_the_first_equals_sign() -> None:
    assert parse_setting("a=b=c") == ("a", "b=c")
    assert parse_setting("a=") == ("a", "")
    with pytest.raises(ValueError, match="allowed: NAME=VALUE"):
        parse_setting("a")


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    """As an argument, everybody who lists processes reads it."""
    secret = tmp_path / "secret"
    secret.write_text("user:pass=word\n")
    assert parse_spark_setting(f"schemaRegistryBasicAuth=@{secret}") == ("schemaRegistryBasicAuth", "user:pass=word")
    assert parse_spark_setting("name=@@plain") == ("name", "@plain")
    assert parse_spark_setting("name=plain@") == ("name", "plain@")
    with pytest.raises(ValueError, match=r"nothing' can't be read: No such file or directory; write @@"):
        parse_spark_setting(f"name=@{tmp_path / 'nothing'}")


def test_a_catalogs_password_comes_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("pass,word")
    catalog = parse_catalog(f"type=jdbc,uri=jdbc:sqlite:/x,warehouse=/y,password=@{secret}")
    assert catalog.password == "pass,word"


def _options(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Option]]:
    yield from ((command, each) for each in command.params if isinstance(each, click.Option))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _options(child, click.Context(child, parent=context, info_name=name))


def test_repeatable_options_of_commands_take_lists_with_commas() -> None:
    """But for settings, NAME=VALUE, whose values have commas, and those that `kafscale.config` reads."""
    without_lists = {
        f"{command.name} {each.opts[0]}"
        for command, each in _options(cli, click.Context(cli))
        if each.multiple and not isinstance(each, ListOption) and command.name not in ("serve", "config")
    }
    settings = {
        "--config",
        "--topic-config",
        "--header",
        "--conf",
        "--option",
        "--setting",
        "--kafka-option",
        "--catalog",
    }
    assert {each.split()[1] for each in without_lists} <= settings


def test_a_list_option_splits_at_commas_and_can_be_repeated() -> None:
    @click.command()
    @click.option("--partition", cls=ListOption, type=INDEX)
    def command(partition: tuple[int, ...]) -> tuple[int, ...]:
        return partition

    assert command.main(["--partition", "1,2", "--partition", "3"], standalone_mode=False) == (1, 2, 3)
    assert command.main([], standalone_mode=False) == ()


def test_a_url_in_bootstrap_must_agree_with_the_security_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "list", "--bootstrap", "SSL://127.0.0.1:1"]) == 2
    assert "'ssl://127.0.0.1:1' is with TLS, and security.protocol is PLAINTEXT" in capsys.readouterr().err
    assert run(["topics", "list", "--bootstrap", "plaintext://127.0.0.1:1"]) == 1
    assert "can't connect to 127.0.0.1:1" in capsys.readouterr().err


def test_the_migrate_command_takes_the_bootstrap_option() -> None:
    assert "--bootstrap" in {name for option in migrate_command.params for name in option.opts}
