"""`kafscale acls`, with a broker whose lists act."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kafscale.cli.main import run
from kafscale.testing.background_broker import running_broker

ROWS = ("resource", "name", "pattern", "principal", "operation", "permission")


def test_lists_are_added_listed_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    with running_broker(authorizer="acl", super_user="User:ANONYMOUS") as broker:

        def acls(*arguments: str) -> int:
            capsys.readouterr()
            return run(["acls", *arguments, "--bootstrap", broker.bootstrap])

        def listed(*arguments: str) -> list[tuple[Any, ...]]:
            assert acls("list", "--json", *arguments) == 0
            return [tuple(row[each] for each in ROWS) for row in json.loads(capsys.readouterr().out)]

        assert (
            acls("add", "User:alice", "--operation", "read", "--operation", "write", "--topic", "or", "--prefixed") == 0
        )
        assert acls("add", "User:alice", "--operation", "all", "--topic", "orders", "--deny", "--host", "10.0.0.1") == 0
        assert acls("add", "User:*", "--operation", "describe", "--cluster") == 0
        assert listed("--topic", "orders") == [
            ("topic", "or", "prefixed", "User:alice", "read", "allow"),
            ("topic", "or", "prefixed", "User:alice", "write", "allow"),
            ("topic", "orders", "literal", "User:alice", "all", "deny"),
        ]
        assert listed("--principal", "User:*") == [
            ("cluster", "kafka-cluster", "literal", "User:*", "describe", "allow"),
        ]
        assert acls("remove", "User:alice", "--topic", "or", "--prefixed", "--operation", "write") == 0
        assert "removed: ALLOW User:alice from * to WRITE TOPIC:PREFIXED:or" in capsys.readouterr().out
        assert len(listed()) == 3
        assert acls("remove", "User:alice", "--json") == 0
        assert {row["principal"] for row in json.loads(capsys.readouterr().out)} == {"User:alice"}
        assert len(listed()) == 1
        assert acls("remove", "User:alice") == 1
        assert "has no such ACL" in capsys.readouterr().err
        assert acls("add", "alice", "--operation", "read", "--topic", "t") == 1
        assert "Could not parse principal" in capsys.readouterr().err


def test_listed_acls_can_be_loaded_into_another_broker(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "acls.json"
    with (
        running_broker(authorizer="acl", super_user="User:ANONYMOUS") as first,
        running_broker(authorizer="acl", super_user="User:ANONYMOUS") as second,
    ):
        for arguments in (
            ["User:alice", "--operation", "alter-configs", "--topic", "or", "--prefixed", "--host", "10.0.0.1"],
            ["User:bob", "--operation", "all", "--transactional-id", "*", "--deny"],
            ["User:carol", "--operation", "idempotent-write", "--cluster"],
        ):
            assert run(["acls", "add", *arguments, "--bootstrap", first.bootstrap]) == 0
        capsys.readouterr()
        assert run(["acls", "list", "--json", "--bootstrap", first.bootstrap]) == 0
        file.write_text(listed := capsys.readouterr().out)
        for _ in range(2):  # what is there already stays
            assert run(["acls", "load", str(file), "--bootstrap", second.bootstrap]) == 0
            assert capsys.readouterr().out == "loaded: 3 ACLs\n"
        assert run(["acls", "list", "--json", "--bootstrap", second.bootstrap]) == 0
        assert capsys.readouterr().out == listed


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"resource": "topic"}]', '[{"resource": "moon"}]'])
def test_a_file_of_another_kind_is_not_loaded(text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "acls.json"
    file.write_text(text)
    assert run(["acls", "load", str(file)]) == 2
    assert "acls.json: this is not the output of `kafscale acls list --json`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--operation", "read"], ["--topic", "t"], ["--operation", "read", "--topic", "t", "--cluster"]]
)
def test_a_wrong_command_exits_2(arguments: list[str]) -> None:
    assert run(["acls", "add", "User:alice", *arguments]) == 2
