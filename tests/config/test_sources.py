"""Precedence of the places that an option comes from, and the line that a wrong one gives."""

from __future__ import annotations

import math
import re
from pathlib import Path

import click
import pytest

from kafscale.cli.main import cli
from kafscale.config import Listener, Loaded, Settings, load, options, sources
from kafscale.config.option import Help, Option, options_of
from kafscale.config.settings import GROUPS
from kafscale.errors import ConfigError


def source_of(loaded: Loaded, attribute: str) -> str:
    return loaded.source(next(each for each in options() if each.attribute == attribute))


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "kafscale.toml"
    path.write_text('broker-id = 3\nsegment-bytes = "1MiB"\nlisten = ["A=127.0.0.1:1", "B=127.0.0.1:2"]\n')
    return path


def test_without_anything_all_is_default() -> None:
    loaded = load({}, {"PATH": "/bin"})
    assert loaded.sources == {}
    assert loaded.settings.broker_id == 0
    assert source_of(loaded, "broker_id") == "default"


def test_a_flag_beats_the_environment_which_beats_the_file(toml: Path) -> None:
    environment = {"KAFSCALE_SEGMENT_BYTES": "2MiB", "KAFSCALE_CHUNK_POOL_BYTES": "1GiB"}
    loaded = load({"chunk_pool_bytes": "2GiB"}, environment, str(toml))
    assert (loaded.settings.broker_id, source_of(loaded, "broker_id")) == (3, f"file {toml}")
    assert loaded.settings.segment_bytes == 2 << 20
    assert source_of(loaded, "segment_bytes") == "environment KAFSCALE_SEGMENT_BYTES"
    assert loaded.settings.chunk_pool_bytes == 2 << 30
    assert source_of(loaded, "chunk_pool_bytes") == "flag --chunk-pool-bytes"


def test_the_environment_can_name_the_file(toml: Path) -> None:
    assert load({}, {"KAFSCALE_CONFIG": str(toml)}).settings.broker_id == 3


def test_a_repeatable_option_is_a_list_in_the_file_and_commas_in_the_environment(toml: Path) -> None:
    expected = (Listener("A", "127.0.0.1", 1), Listener("B", "127.0.0.1", 2))
    assert load({}, {}, str(toml)).settings.listeners == expected
    assert load({}, {"KAFSCALE_LISTEN": "A=127.0.0.1:1,B=127.0.0.1:2"}).settings.listeners == expected
    assert load({"listeners": ("A=127.0.0.1:1", "B=127.0.0.1:2")}, {}).settings.listeners == expected


REPEATABLE = {
    "listeners": "A=127.0.0.1:1,B=127.0.0.1:2",
    "listener_security_protocols": "A=SASL_PLAINTEXT, B=PLAINTEXT",
    "advertised_listeners": "A=broker.example:1,B=broker.example:2",
    "super_users": "User:CN=broker,O=example,User:ann",
    "sasl_mechanisms": "SCRAM-SHA-512, PLAIN",
    "sasl_oauthbearer_expected_audience": "one,two",
    "sasl_oauthbearer_required_scopes": "one,two",
    "max_connections_per_ip_overrides": "10.0.0.1:5,[::1]:7",
}


def test_every_repeatable_option_is_tried_below() -> None:
    assert {each.attribute for each in options() if each.is_repeatable} == set(REPEATABLE)


@pytest.mark.parametrize("each", [each for each in options() if each.is_repeatable], ids=lambda each: each.attribute)
def test_a_repeatable_option_takes_a_list_with_commas_everywhere(each: Option, tmp_path: Path) -> None:
    """`--sasl-mechanisms SCRAM-SHA-512,PLAIN` was refused as one name that is not known."""
    text = REPEATABLE[each.attribute]
    names = {"listeners": REPEATABLE["listeners"]} if "listener" in each.attribute else {}
    file = tmp_path / "kafscale.toml"
    for written in (f'"{text}"', f'["{text}"]', f"{[str(value) for value in _values(each, text)]}"):
        file.write_text(f"{each.name} = {written}\n")
        assert load(names, {}, str(file)).settings.value(each) == _values(each, text), written
    assert load({**names, each.attribute: (text,)}, {}).settings.value(each) == _values(each, text)
    assert load(names, {each.variable: text}).settings.value(each) == _values(each, text)
    assert len(_values(each, text)) == 2
    assert each.parse(each.format(_values(each, text)), given_as="") == _values(each, text)


def _values(each: Option, text: str) -> tuple[object, ...]:
    return tuple(each.parse(text, given_as="here"))


@pytest.mark.parametrize("text", ["User:CN=broker,O=example;User:ann", "User:CN=broker,O=example, User:ann"])
def test_a_comma_in_a_principal_belongs_to_the_name(text: str) -> None:
    expected = ("User:CN=broker,O=example", "User:ann")
    assert load({"super_users": (text,)}, {}).settings.super_users == expected
    assert load({}, {"KAFSCALE_SUPER_USER": text}).settings.super_users == expected


def test_the_admin_listen_url_scheme_must_agree_with_admin_ssl() -> None:
    assert load({"admin_listen": "http://127.0.0.1:9644"}, {}).settings.admin_listen.port == 9644
    with pytest.raises(ConfigError, match=r"--admin-listen: 'https://127.0.0.1:1' contradicts --admin-ssl; allowed: w"):
        load({"admin_listen": "https://127.0.0.1:1"}, {})


def test_a_limit_is_an_option_too() -> None:
    assert load({}, {"KAFSCALE_MAX_FRAME_BYTES": "8MiB"}).settings.limits.max_frame_bytes == 8 << 20


def test_durations_keep_the_unit_of_their_attribute() -> None:
    settings = load({"flush_interval_seconds": "250ms", "group_max_session_timeout_ms": "1h"}, {}).settings
    assert settings.flush_interval_seconds == 0.25
    assert settings.coordinator.group_max_session_timeout_ms == 3_600_000


def test_every_default_reads_back_from_its_text_form() -> None:
    defaults = load({}, {}).settings
    texts = {each.variable: each.format(defaults.value(each)) for each in options()}
    assert load({}, texts).settings == defaults


def test_an_empty_variable_counts_as_not_given() -> None:
    assert load({}, {"KAFSCALE_S3_ENDPOINT": ""}).settings.s3_endpoint is None


SERVICE_LINKS = {  # what Kubernetes sets for a Service with a port named `kafka`, behind the Service's name
    "SERVICE_HOST": "10.0.0.1",
    "SERVICE_PORT": "9092",
    "SERVICE_PORT_KAFKA": "9092",
    "PORT": "tcp://10.0.0.1:9092",
    "PORT_9092_TCP": "tcp://10.0.0.1:9092",
    "PORT_9092_TCP_PROTO": "tcp",
    "PORT_9092_TCP_PORT": "9092",
    "PORT_9092_TCP_ADDR": "10.0.0.1",
}


@pytest.mark.parametrize("service", ["KAFSCALE", "KAFSCALE_BROKER", "KAFSCALE_BROKER_0", "KAFSCALE_ADMIN_PORT"])
@pytest.mark.parametrize("link", SERVICE_LINKS)
def test_kubernetes_service_links_are_passed_over(service: str, link: str) -> None:
    assert load({}, {f"{service}_{link}": SERVICE_LINKS[link]}).sources == {}


def test_an_option_named_like_a_service_link_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    named = Option(attribute="broker_id", type=int, help=Help(text="A port.", name="metrics-service-port"))
    monkeypatch.setattr(sources, "options", lambda: (named,))
    assert load({}, {"KAFSCALE_METRICS_SERVICE_PORT": "7"}).settings.broker_id == 7


def test_variables_of_other_commands_are_passed_over() -> None:
    """`KAFSCALE_SPARK_MASTER`, set for `kafscale pipeline`, kept a broker from starting."""
    for variable in sorted(_variables_of(cli, click.Context(cli))):
        if variable not in {each.variable for each in options()}:
            assert load({}, {variable: "1"}).sources == {}, variable


def _variables_of(command: click.Command, context: click.Context) -> set[str]:
    found = {each.envvar for each in command.params if isinstance(each.envvar, str)}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            found |= _variables_of(child, click.Context(child, parent=context))
    return found


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"chunk_pool_bytes": "12x"},
            r"--chunk-pool-bytes: '12x' is not a size; allowed: a number of bytes, or .*64MiB",
        ),
        ({"chunk_pool_bytes": "1KiB"}, r"--chunk-pool-bytes: '1KiB' is out of range; allowed: at least 1MiB"),
        (
            {"flush_interval_seconds": "10"},
            r"--flush-interval: '10' has no unit; allowed: a number with .* such as 10s",
        ),
        ({"broker_id": "-1"}, r"--broker-id: '-1' is out of range; allowed: 0 to 2147483647"),
        ({"broker_id": "one"}, r"--broker-id: 'one' is not a whole number"),
        ({"durability": "disk"}, r"--durability: 'disk' is not known; allowed: wal, s3-wal, segment"),
        ({"auto_create_topics": "maybe"}, r"--auto-create-topics: 'maybe' is not a switch; allowed: true, false"),
        ({"store": "ftp:x"}, r"--store: 'ftp:x' is not a store; allowed: file:PATH, .*memory:SIZE"),
        ({"listeners": ("h:1", "h:2")}, r"--listen: 'PLAINTEXT' is given 2 times; allowed: each name once, .*"),
        (
            {"advertised_listeners": ("X=h:1",)},
            r"--advertised-listener: 'X=h:1' has no listener; allowed: .*, PLAINTEXT",
        ),
        ({"advertised_listeners": ("0.0.0.0:1",)}, r"--advertised-listener: .* can't be connected to; allowed: .*"),
        (
            {"group_min_session_timeout_ms": "1h"},
            r"--group-min-session-timeout: '1h' is too large; allowed: .*, 30m",
        ),
        (
            {"max_message_bytes": "1GB"},
            r"--max-message-bytes: '1GB' is too large; allowed: at most --chunk-pool-bytes, .*",
        ),
        ({"namespace": "a/b"}, r"--namespace: 'a/b' is not a namespace; allowed: .*"),
        (
            {"s3_sse": "AES256"},
            r"--s3-sse: 'AES256' is not for --store file:.*; allowed: with --store s3://BUCKET",
        ),
        ({"s3_sse": "aws:kms", "store": "s3://bkt"}, r"--s3-sse: 'aws:kms' is not an encryption; allowed: .*"),
        ({"s3_endpoint": "http://h:1"}, r"--s3-endpoint: 'http://h:1' is not for --store file:.*; allowed: .*"),
        (
            {"s3_endpoint": "h:1", "store": "s3://bkt"},
            r"--s3-endpoint: 'h:1' is not an endpoint; allowed: http://HOST.*",
        ),
        *(
            ({"s3_endpoint": each, "store": "s3://bkt"}, rf"--s3-endpoint: '{re.escape(each)}' is not an endpoint; .*")
            for each in ("http://[::1", "http://[x]:1", "http://h:99999", "http://h:0")
        ),
        *(
            ({"s3_endpoint": each, "store": "s3://bkt"}, rf"--s3-endpoint: '{re.escape(each)}' is not an endpoint; .*")
            for each in (
                "http://h/a/../b",
                "http://h/.",
                "http://h/a//b",
                "http://h/%2e%2e",
                "http://h/a?b",
                "http://h/#a",
            )
        ),
        (
            {"sasl_oauthbearer_jwks_endpoint_url": "https://[::1/keys"},
            r"--sasl-oauthbearer-jwks-endpoint-url: 'https://\[::1/keys' is not a safe source of keys; allowed: .*",
        ),
        ({"traces_endpoint": "localhost:4318"}, r"--traces-endpoint: 'localhost:4318' is not a URL; allowed: .*"),
        (
            {"traces_endpoint": "http://user:secret@h:1"},
            r"--traces-endpoint: has credentials in it; allowed: only in OTEL_EXPORTER_OTLP_HEADERS",
        ),
        ({"data_dir": "~nobody-at-all/x"}, r"--data-dir: '~nobody-at-all/x' begins with a home directory .*"),
    ],
)
def test_a_wrong_flag_gives_one_line_with_option_value_and_allowed_values(flags: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"\A{message}\Z"):
        load(flags, {})


def test_credentials_in_the_endpoint_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        load({"s3_endpoint": "http://user:secret@h:1", "store": "s3://bkt"}, {})
    assert "secret" not in str(caught.value)


def test_a_wrong_variable_names_itself() -> None:
    with pytest.raises(ConfigError, match=r"^KAFSCALE_LOG_LEVEL: 'loud' is not known; allowed: debug, info, warning"):
        load({}, {"KAFSCALE_LOG_LEVEL": "loud"})


def test_an_unknown_variable_names_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"^KAFSCALE_SEGMENT_BYTE: there is no such option; did you mean KAFSCALE_SEGMENT_BYTES\?"
    ):
        load({}, {"KAFSCALE_SEGMENT_BYTE": "1"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("brokerid = 1", "'brokerid' is not an option; did you mean broker-id?"),
        ("qqqq = 1", "'qqqq' is not an option; `kafscale serve --help` lists all"),
        ("[limits]\nx = 1", "'limits' is not an option"),
        ("broker-id = true", "broker-id: 'True' is not a whole number"),
        ("store = 5", "store: '5' is not a string; put it in quotes"),
        ("namespace = ''", "namespace: '' is empty"),
        ("broker-id =", "is not TOML"),
    ],
)
def test_a_wrong_file_gives_one_line_with_path_and_reason(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load({}, {}, str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_removed_option_error_states_the_current_behaviour(tmp_path: Path) -> None:
    """As a flag too: see tests/cli/test_main.py."""
    assert not {each.name for each in options()} & set(sources.REMOVED)
    file = tmp_path / "kafscale.toml"
    for name, sentence in sources.REMOVED.items():
        message = re.escape(f": this option was removed; {sentence}") + r"\Z"
        with pytest.raises(ConfigError, match=message):
            load({}, {f"KAFSCALE_{name.upper().replace('-', '_')}": "1"})
        file.write_text(f"{name} = 1\n")
        with pytest.raises(ConfigError, match=message):
            load({}, {}, str(file))


def test_a_heartbeat_interval_moves_its_bounds_and_stays_below_the_session_timeout() -> None:
    for text, bounds in (("1s", (1_000, 15_000)), ("5s", (5_000, 15_000)), ("20s", (5_000, 20_000))):
        chosen = load({"group_consumer_heartbeat_interval_ms": text}, {}).settings.coordinator
        least, most = chosen.group_consumer_min_heartbeat_interval_ms, chosen.group_consumer_max_heartbeat_interval_ms
        assert (least, most) == bounds
    with pytest.raises(ConfigError, match="allowed: less than the session timeout, 45s"):
        load({"group_consumer_heartbeat_interval_ms": "45s"}, {})


def test_a_missing_config_file_is_named_in_the_error() -> None:
    with pytest.raises(ConfigError, match=r"^--config: 'no/such.toml' can't be read: No such file or directory"):
        load({}, {}, "no/such.toml")


BOUNDED = [each for each in options() if math.isfinite(each.help.least) or math.isfinite(each.help.most)]


@pytest.mark.parametrize("each", BOUNDED, ids=lambda each: each.attribute)
def test_a_value_out_of_bounds_is_refused_wherever_settings_are_made(each: Option) -> None:
    """Not only where text is read."""
    [group] = [name for name, cls in GROUPS.items() if each in options_of(cls)] or [None]
    for wrong in (each.help.least - 1, each.help.most + 1):
        if math.isfinite(wrong):
            changed = {each.attribute: wrong}
            with pytest.raises(ConfigError, match=rf"{each.flag}: .* is out of range"):
                Settings(**({group: GROUPS[group](**changed)} if group else changed))
