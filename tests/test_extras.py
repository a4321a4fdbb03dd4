"""Extras: a missing package gives a command that installs it from where KafScale came, into this environment."""

from __future__ import annotations

import json
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from kafscale import extras
from kafscale.errors import StartupError
from kafscale.spark.values.decoder import make_reader
from kafscale.spark.values.options import ReaderOptions
from kafscale.values.registry import Schema

REPOSITORY = Path(__file__).parents[1]
OPTIONAL = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]


class Installed:
    """A distribution whose installer recorded `url`, or nothing."""

    def __init__(self, url: str | None, *, is_editable: bool = False) -> None:
        self._record = url and json.dumps({"url": url, "dir_info": {"editable": True} if is_editable else {}})

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._record


@pytest.fixture
def prefix(tmp_path, monkeypatch) -> Path:
    """Return the directory of an environment that has pip."""
    path = tmp_path / "environment"
    path.mkdir()
    monkeypatch.setattr(sys, "prefix", str(path))
    monkeypatch.setattr(sys, "executable", str(path / "bin" / "python"))
    monkeypatch.setattr(extras, "find_spec", lambda name: name)
    return path


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "a b" / "kafscale-0.1.0-py3-none-any.whl"
    path.parent.mkdir()
    path.touch()
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(path.as_uri()))
    return path


def test_pip_installs_the_same_wheel_again(prefix, wheel) -> None:
    assert extras.install_command("sql") == f"{prefix}/bin/python -m pip install '{wheel}[sql]'"


def test_pip_installs_a_clone_editable_again(prefix, monkeypatch) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(REPOSITORY.as_uri(), is_editable=True))
    assert extras.install_command("avro") == f"{prefix}/bin/python -m pip install --editable '{REPOSITORY}[avro]'"


@pytest.mark.parametrize("url", [None, "file:///no/such/file.whl", "https://example.com/kafscale.whl"])
def test_without_a_local_file_the_name_is_installed(prefix, monkeypatch, url) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(url))
    assert extras.install_command("sql") == f"{prefix}/bin/python -m pip install 'kafscale[sql]'"


def test_an_environment_of_uv_has_no_pip(prefix, wheel, monkeypatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert extras.install_command("sql") == f"uv pip install --python {prefix}/bin/python '{wheel}[sql]'"


@pytest.mark.parametrize(
    ("file", "command"), [("pipx_metadata.json", "pipx install --force"), ("uv-receipt.toml", "uv tool install")]
)
def test_a_tools_environment_is_installed_again_by_what_made_it(prefix, wheel, file, command) -> None:
    (prefix / file).touch()
    assert extras.install_command("sql") == f"{command} '{wheel}[sql]'"


def test_uvx_gets_the_extra_with_the_next_command(prefix, wheel, monkeypatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(prefix / "archive-v0" / "x"))
    assert extras.install_command("sql") == f"uvx --from '{wheel}[sql]' kafscale"


@pytest.mark.parametrize(
    ("value_format", "package"), [("avro", "fastavro"), ("protobuf", "google.protobuf"), ("json", "orjson")]
)
def test_the_extra_of_a_value_format_has_its_name(value_format, package, monkeypatch) -> None:
    assert value_format in OPTIONAL
    monkeypatch.setitem(sys.modules, package, None)
    rooms = tuple(f"kafscale.{room}.{value_format}" for room in ("spark.values", "values"))
    for name in [each for each in sys.modules if each.startswith(rooms)]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(StartupError, match=rf"the value format {value_format} needs {package}, which the extra"):
        make_reader(ReaderOptions(format=value_format, schema=Schema(format=value_format.upper(), text="")))


def test_sql_and_value_formats_need_no_spark() -> None:
    assert "kafscale[sql,avro,protobuf,json]" in OPTIONAL["spark"]
    small = " ".join(each for name in ("sql", "avro", "protobuf", "json") for each in OPTIONAL[name])
    assert "pyspark" not in small
    assert "pyarrow" not in str([OPTIONAL[name] for name in ("avro", "protobuf", "json")])  # of SQL and Spark
    assert any(each.startswith("pyspark") for each in OPTIONAL["spark"])
