"""Times and settings as options."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kafscale.cli import migrate
from kafscale.cli.connecting import parse_setting, parse_spark_setting, parse_time
from kafscale.cli.sql_options import parse_catalog


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
def test_a_time_is_read_as_utc_unless_it_says_otherwise(text: str, time_ms: int) -> None:
    assert parse_time(text) == time_ms


def test_a_duration_is_that_long_ago() -> None:
    assert 0 <= time.time() * 1000 - 900_000 - parse_time("15m") < 60_000


@pytest.mark.parametrize("text", ["", "yesterday", "15", "2026-13-01", "-5"])
def test_what_is_no_time_says_what_is_allowed(text: str) -> None:
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


def test_a_checkpoint_is_migrated_with_the_brokers_of_bootstrap_as_all_commands_have_it() -> None:
    assert "--bootstrap" in {name for option in migrate.command.params for name in option.opts}
