"""Completion of commands and of names that a broker has, in this process and in real shells."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import BashComplete

from kafscale.cli import completion
from kafscale.cli.main import COMMANDS, cli, run

PROGRAMS = Path(sys.executable).parent


def complete(*words: str) -> list[str]:
    """Return what is offered for the last word."""
    completing = BashComplete(cli, {}, "kafscale", completion.VARIABLE)
    return [item.value for item in completing.get_completions([*words[:-1]], words[-1])]


@pytest.fixture
def broker(kafscale_broker: Any, feed: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a broker with two topics and a group, which KAFSCALE_BOOTSTRAP names; it may take long to answer."""
    monkeypatch.setattr(completion, "ANSWER_SECONDS", 60.0)
    kafscale_broker.create_topic("greetings")
    kafscale_broker.create_topic("readings")
    monkeypatch.setenv("KAFSCALE_BOOTSTRAP", kafscale_broker.bootstrap)
    feed("1\n")
    assert run(["produce", "readings"]) == 0
    assert run(["consume", "readings", "--group", "tour", "--from-beginning"]) == 0
    return kafscale_broker


def test_commands_and_options_are_completed() -> None:
    assert complete("") == list(COMMANDS)
    assert complete("pa") == ["partitions"]
    assert complete("topics", "cr") == ["create"]
    assert "--durability" in complete("serve", "--dur")
    assert complete("completion", "") == ["bash", "zsh", "fish"]


def test_topics_and_groups_are_those_of_the_broker(broker: Any) -> None:
    assert complete("topics", "describe", "") == ["greetings", "readings"]
    assert complete("topics", "delete", "greetings", "") == ["readings"]
    assert complete("consume", "re") == ["readings"]
    assert complete("consume", "_") == ["__consumer_offsets"], "internal ones only when asked for"
    assert complete("groups", "describe", "") == ["tour"]
    assert complete("groups", "reset-offsets", "tour", "--topic", "g") == ["greetings"]
    assert complete("topics", "create", "") == [], "a new name"


def test_names_are_asked_of_the_brokers_on_the_command_line(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFSCALE_BOOTSTRAP", "127.0.0.1:1")
    assert complete("topics", "describe", "") == []
    assert complete("topics", "describe", "--bootstrap", broker.bootstrap, "r") == ["readings"]


def test_without_a_broker_nothing_is_offered_or_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert complete("topics", "describe", "--bootstrap", "127.0.0.1:1", "") == []
    assert complete("topics", "describe", "--bootstrap", "no address", "") == []
    assert complete("topics", "describe", "--command-config", "/no/such/file", "") == []
    assert capfd.readouterr() == ("", "")


def test_a_broker_that_does_not_answer_is_given_up_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        assert complete("topics", "describe", "--bootstrap", f"127.0.0.1:{silent.getsockname()[1]}", "") == []
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert completion.VARIABLE in capfd.readouterr().out


# ---- real shells: a terminal, a Tab, and what the completed command prints ------------------------------------------

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(kafscale completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -Uz compinit && compinit -u -D; eval "$(kafscale completion zsh)"'),
    "fish": (["fish", "--no-config", "-i"], "kafscale completion fish | source"),
}


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[[list[str]], Terminal]]:
    opened: list[Terminal] = []

    def start(command: list[str]) -> Terminal:
        opened.append(Terminal(command, tmp_path))
        return opened[0]

    yield start
    for each in opened:
        each.close()


STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]")


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, command: list[str], home: Path) -> None:
        self._master, child = pty.openpty()
        keep = {"KAFSCALE_BOOTSTRAP": os.environ["KAFSCALE_BOOTSTRAP"], "HOME": str(home), "TERM": "xterm"}
        environ = {**keep, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "PS1": "$ ", "COLUMNS": "200"}
        on_terminal = ["setsid", "--ctty", *command]  # a shell wants to control its terminal
        self._process = subprocess.Popen(on_terminal, stdin=child, stdout=child, stderr=child, env=environ, cwd=home)
        os.close(child)
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, pattern: str) -> None:
        """Read until the pattern is shown. Fails after two minutes."""
        end = time.monotonic() + 120
        while not re.search(pattern, self.shown):
            readable, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            assert readable, f"{pattern} is not in {self.shown!r}"
            self.shown += STYLES.sub("", os.read(self._master, 1 << 16).decode(errors="replace"))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)


@pytest.mark.wheel  # an interactive shell starts the command at each Tab
@pytest.mark.parametrize("shell", SHELLS)
def test_a_tab_completes_command_and_topic_in_a_real_shell(
    shell: str, broker: Any, terminal: Callable[[list[str]], Terminal]
) -> None:
    command, load = SHELLS[shell]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{shell} is not installed")
    opened = terminal(command)
    opened.type(f"{load}; echo loa''ded\n")
    opened.wait_for("loaded")
    opened.shown = ""
    opened.type("kafscale top\t")
    opened.wait_for("topics ")
    opened.type("describe gre\t")
    opened.wait_for("greetings")
    opened.shown = ""
    opened.type("\n")
    opened.wait_for(r"partition +leader +replicas")  # the table of a terminal
