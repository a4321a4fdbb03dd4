"""`kafscale consume --value-format`: values of confluent-kafka's serializers come out as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from kafscale.cli.main import run
from kafscale.config.sources import load
from kafscale.values import registry as registries
from tests.devtools.external.registry import Values, message_class, prefixed, running_values

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "note", "type": ["null", "string"], "default": None}],
}
PROTO = 'syntax = "proto3"; message Order { int32 id = 1; string note = 2; }'


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> Iterator[Values]:
    monkeypatch.setattr(registries, "LAG_PAUSES_SECONDS", ())
    with running_values() as running:
        yield running


def line(value: bytes | None, **more: Any) -> str:
    fields = {"value": None} if value is None else {"value_base64": base64.b64encode(value).decode()}
    return json.dumps(fields | more) + "\n"


async def produced(kafscale: Any, feed: Any, *lines: str) -> None:
    feed("".join(lines))
    await kafscale("produce", "orders", "--json")


def decoding(values: Values, *formats: str) -> list[str]:
    return ["consume", "orders", "--from-beginning", "--registry", values.registry.url, *formats]


@pytest.mark.parametrize("format", ["avro", "protobuf", "json"])
async def test_a_value_is_written_as_json(kafscale: Any, feed: Any, values: Values, format: str) -> None:
    value = {
        "avro": lambda: values.avro(ORDER, {"id": 1, "note": "für\ndich"}),
        "protobuf": lambda: values.protobuf(message_class(PROTO, "Order")(id=1, note="für\ndich")),
        "json": lambda: values.json({"title": "Order", "type": "object"}, {"id": 1, "note": "für\ndich"}),
    }[format]()
    await produced(kafscale, feed, line(value, key="k"), line(None, key="k"))
    command = decoding(values, "--value-format", format)
    assert await kafscale(*command) == '{"id":1,"note":"für\\ndich"}\n\n'
    assert await kafscale(*command, "--key-separator", ":") == 'k:{"id":1,"note":"für\\ndich"}\nk:\n'
    assert await kafscale(*command, "--format", "%p/%o %v|", "--max-messages", "1") == (
        '0/0 {"id":1,"note":"für\\ndich"}|'
    )
    written, deleted = map(json.loads, (await kafscale(*command, "--json")).splitlines())
    assert (written["key"], written["value"]) == ("k", {"id": 1, "note": "für\ndich"})
    assert deleted["value"] is None


async def test_keys_are_decoded_too(kafscale: Any, feed: Any, values: Values) -> None:
    key = values.avro({"type": "long"}, 5)
    await produced(kafscale, feed, line(b"plain", key_base64=base64.b64encode(key).decode()))
    assert await kafscale(*decoding(values, "--key-format", "avro"), "--key-separator", "=") == "5=plain\n"


async def test_a_schemas_id_in_a_header(kafscale: Any, feed: Any, values: Values) -> None:
    headers: list[Any] = []
    value = values.avro(ORDER, {"id": 1}, headers=headers)
    [(name, id_header)] = headers
    pairs = [[name, None, base64.b64encode(id_header).decode()]]
    await produced(kafscale, feed, line(value, headers=pairs))
    assert await kafscale(*decoding(values, "--value-format", "avro")) == '{"id":1,"note":null}\n'


async def test_a_value_that_is_not_decoded_is_reported_and_written(
    kafscale: Any, feed: Any, values: Values, capsys: Any
) -> None:
    good = values.avro(ORDER, {"id": 1})
    await produced(kafscale, feed, line(b"plain"), line(prefixed(9, b"x")), line(good))
    command = decoding(values, "--value-format", "avro")
    arguments = [*command, "--bootstrap", str(kafscale.address)]
    capsys.readouterr()
    assert await trio.to_thread.run_sync(run, arguments) == 1
    written = capsys.readouterr()
    assert written.out == 'plain\n\0\0\0\0\x09x\n{"id":1,"note":null}\n'
    first = "the first byte is 112, not 0: it was not written with a schema registry"
    assert written.err.splitlines() == [
        f"kafscale: partition 0, offset 0: the value is not decoded: {first}",
        "kafscale: partition 0, offset 1: the value is not decoded: the schema registry has no schema 9",
        "kafscale: 2 keys or values were not decoded and are written as they are",
    ]
    assert await trio.to_thread.run_sync(run, [*arguments, "--json"]) == 1
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["value"], first["value_base64"]) == (None, base64.b64encode(b"plain").decode())
    assert "the first byte is 112" in first["value_error"]
    assert "no schema 9" in second["value_error"]
    assert third["value"] == {"id": 1, "note": None}


async def test_a_registry_that_does_not_answer_ends_the_command(kafscale: Any, feed: Any, values: Values) -> None:
    await produced(kafscale, feed, line(values.avro(ORDER, {"id": 1})))
    values.registry.failures = [401] * 3
    said = await kafscale(*decoding(values, "--value-format", "avro"), code=1)
    assert "refuses (HTTP 401): check basic auth or bearer token" in said


async def test_a_file_of_credentials(kafscale: Any, feed: Any, values: Values, tmp_path: Any) -> None:
    await produced(kafscale, feed, line(values.avro(ORDER, {"id": 1})))
    values.registry.basic_auth = "user:secret"
    (file := tmp_path / "registry.properties").write_text("basic.auth.user.info=user:secret\n")
    command = decoding(values, "--value-format", "avro", "--registry-config", str(file))
    assert await kafscale(*command) == '{"id":1,"note":null}\n'


async def test_a_group_commits_decoded_records(kafscale: Any, feed: Any, values: Values) -> None:
    await produced(kafscale, feed, *(line(values.avro(ORDER, {"id": number})) for number in range(3)))
    command = decoding(values, "--value-format", "avro", "--group", "g", "--max-messages", "2")
    assert await kafscale(*command) == '{"id":0,"note":null}\n{"id":1,"note":null}\n'
    assert await kafscale(*command) == '{"id":2,"note":null}\n'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--value-format", "avro"], "need --registry: http://HOST:PORT"),
        (["--registry", "http://r"], "--registry needs --value-format or --key-format"),
        (["--registry", "r:8081", "--key-format", "json"], "give http://host:port"),
        (["--value-format", "xml"], "'xml' is not one of 'avro', 'protobuf', 'json'"),
    ],
)
async def test_options_that_do_not_belong_together(kafscale: Any, options: list[str], message: str) -> None:
    assert message in await kafscale("consume", "orders", *options, code=2)


async def test_the_environment_names_the_registry(
    kafscale: Any, feed: Any, values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a format it has no effect, and a broker beside does not refuse the variable."""
    await produced(kafscale, feed, line(values.avro(ORDER, {"id": 1})))
    monkeypatch.setenv("KAFSCALE_SCHEMA_REGISTRY_URL", values.registry.url)
    assert await kafscale("consume", "orders", "--from-beginning", "--value-format", "avro") == '{"id":1,"note":null}\n'
    assert "\x02" in await kafscale("consume", "orders", "--from-beginning")
    load({}, {"KAFSCALE_SCHEMA_REGISTRY_URL": values.registry.url, "KAFSCALE_SCHEMA_REGISTRY_BASIC_AUTH": "a:b"})
