"""Exit codes and the one line: in this process, and once each in a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import click
import pytest

from kafscale.cli.main import COMMANDS, cli, expected_error, load_command, run
from kafscale.cli.output import open_standard_files
from kafscale.errors import ConfigError, StartupError, StorageFailed


def _command_lines(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield (*path, "--help")
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            child = command.get_command(click.Context(command), name)
            assert child is not None
            yield from _command_lines(child, (*path, name))


PRINTING = [*_command_lines(cli, ()), ("--version",), ("config",), ("config", "--json"), ("config", "--reference")]


def kafscale(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KAFSCALE_")}
    command = [sys.executable, "-m", "kafscale", *arguments]
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_wrong_option_exits_2_with_one_line() -> None:
    done = kafscale("serve", "--chunk-pool-bytes", "12x")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("kafscale: --chunk-pool-bytes: '12x' is not a size; allowed: ")
    assert done.stderr.count("\n") == 1


def test_a_wrong_variable_exits_2_with_one_line() -> None:
    done = kafscale("serve", KAFSCALE_DURABILITY="none")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "KAFSCALE_DURABILITY: 'none' is not known; allowed: wal, s3-wal, segment" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "--chunk-pool"), "No such option '--chunk-pool'"),
        (("serve", "--listen"), "'--listen' requires an argument"),
        (("serve", "--orphan-grace", "1s"), "kafscale serve: --orphan-grace: this option was removed; it is 1h"),
        (("serve", "extra"), "unexpected extra argument"),
        (("server",), "No such command 'server'. Did you mean 'serve'?"),
        (("serv",), "No such command 'serv'. Did you mean 'serve'"),
        (("topic",), "Did you mean 'topics' or 'top'?"),
        (("sqll",), "Did you mean 'sql'?"),
        (("topics", "creat"), "kafscale topics: No such command 'creat'. Did you mean 'create'?"),
        (("sql", "serv"), "kafscale sql: No such command 'serv'. Did you mean 'serve'?"),
        (("pipeline", "stat"), "Did you mean 'status'?"),
        (("frobnicate",), "No such command 'frobnicate'. `kafscale --help` lists the commands."),
        (("groups", "--halp"), "No such option '--halp'"),
        (("serve", "--config", "no/such.toml"), "--config: 'no/such.toml' can't be read"),
        (("serve", "--s3-endpoint", ""), "--s3-endpoint: '' is empty"),
    ],
)
def test_usage_errors_give_one_line(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert words in written.err
    assert written.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "t", "--offset", str(1 << 63)),
        ("consume", "t", "--partition", str(1 << 31)),
        ("consume", "t", "--time", str(1 << 63)),
        ("consume", "t", "--time", f"{1 << 63}d"),
        ("produce", "t", "--partition", str(1 << 31)),
        ("topics", "create", "t", "--partitions", str(1 << 31)),
        ("topics", "create", "t", "--replication-factor", str(1 << 15)),
        ("topics", "alter", "t", "--partitions", str(1 << 31)),
        ("partitions", "move", "t", "--to", str(1 << 31)),
        ("groups", "reset-offsets", "g", "--to-offset", str(1 << 63)),
    ],
)
def test_numbers_that_the_protocol_has_no_room_for_ended_with_a_traceback(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--bootstrap", "127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_command_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "serve" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_the_first_sentence_of_its_help(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    assert COMMANDS[name] == command.get_short_help_str(limit=200)


@pytest.mark.parametrize("option", ["--help", "-h", "--version"])
def test_help_and_version_exit_0(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([option]) == 0
    assert "kafscale" in capsys.readouterr().out


def test_help_of_serve_tells_default_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "--flush-interval DURATION" in words
    assert "[default: 10s; KAFSCALE_FLUSH_INTERVAL]" in words


@pytest.mark.parametrize("width", [64, 78, 80, 96])
@pytest.mark.parametrize("arguments", [each for each in PRINTING if each[-1] == "--help"], ids=" ".join)
def test_help_split_names_of_options_at_their_hyphens(
    arguments: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`consume --help` had --from- at the end of a line, and beginning on the next one."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(arguments) == 0
    assert [
        line for line in capsys.readouterr().out.splitlines() if line.endswith("-") and not line.endswith(" -")
    ] == []


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_file_that_was_closed_ended_commands_with_a_traceback(closed: str) -> None:
    command = ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-m", "kafscale", "config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_expected_error_is_found_in_nested_groups() -> None:
    lost = StorageFailed("the disk is gone")
    assert expected_error(ExceptionGroup("", [ExceptionGroup("", [lost])])) is lost
    assert expected_error(ExceptionGroup("", [StartupError("a"), StorageFailed("b")])) is not None
    assert isinstance(expected_error(ConfigError("x")), ConfigError)


def test_a_bug_beside_an_expected_error_is_not_hidden() -> None:
    assert expected_error(ExceptionGroup("", [StartupError("a"), ZeroDivisionError()])) is None
    assert expected_error(ZeroDivisionError()) is None


def test_a_closed_stdout_pipe_is_not_an_error() -> None:
    command = f"{sys.executable} -m kafscale config --reference | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "# Options of `kafscale serve`\n"
    assert done.stderr == ""


@pytest.fixture
def with_stdout(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    with ExitStack() as opened:

        def use(descriptor: int) -> None:
            monkeypatch.setattr(sys, "stdout", opened.enter_context(os.fdopen(descriptor, "w")))
            open_standard_files()

        yield use


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_full_disk_below_stdout_ended_commands_with_a_traceback(
    arguments: tuple[str, ...], with_stdout: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with_stdout(os.open("/dev/full", os.O_WRONLY))
    assert run(arguments) == 1
    assert capsys.readouterr().err == "kafscale: can't write to stdout: No space left on device\n"


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_closed_pipe_ends_commands_without_a_word(
    arguments: tuple[str, ...], with_stdout: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with_stdout(writing)
    assert run(arguments) == 1
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_a_one_line_error_of_the_process() -> None:
    command = f"{sys.executable} -m kafscale config --json >/dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "kafscale: can't write to stdout: No space left on device\n")


def test_a_full_disk_below_stderr_keeps_the_exit_code() -> None:
    command = f"{sys.executable} -m kafscale server 2>/dev/full"
    assert subprocess.run(command, shell=True, timeout=60, check=False).returncode == 2
