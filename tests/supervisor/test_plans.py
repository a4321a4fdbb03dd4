"""What each broker of `--processes` is started with, from the settings of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafscale.cli.serve import command
from kafscale.config import GIB, MIB, Address, Settings, load, options
from kafscale.errors import ConfigError
from kafscale.supervisor.plans import BrokerPlan, environment_of_brokers, plan_brokers


def plans(count: int, **flags: Any) -> tuple[BrokerPlan, ...]:
    return plan_brokers(load(flags, {}), count)


def started_with(plan: BrokerPlan) -> Settings:
    """What a broker makes of its command."""
    _, *arguments = plan.arguments()
    flags = command.make_context("serve", arguments).params
    return load(flags, {}).settings


def test_each_broker_has_its_id_directory_ports_and_admin_server() -> None:
    listeners = ("PLAINTEXT=127.0.0.1:9092", "OUT=0.0.0.0:9192", "ANY=127.0.0.1:0")
    first, second, third = (
        started_with(each)
        for each in plans(
            3,
            broker_id="5",
            data_dir="data",
            listeners=listeners,
            advertised_listeners=("OUT=broker.example:19092",),
            admin_listen="0.0.0.0:9644",
            cache_directory="cache",
        )
    )
    assert [each.broker_id for each in (first, second, third)] == [5, 6, 7]
    assert [each.data_dir for each in (first, second, third)] == [
        Path("data"),
        Path("data/broker-6"),
        Path("data/broker-7"),
    ]
    assert [each.cache_directory for each in (first, second)] == [Path("cache"), Path("cache/broker-6")]
    assert {str(each.store) for each in (first, second, third)} == {"file:data/bucket"}
    assert {each.sasl.secret_key_file for each in (first, second, third)} == {Path("data/secret.key")}
    assert {str(each.admin_listen) for each in (first, second, third)} == {"127.0.0.1:0"}
    assert [str(each) for each in third.listeners] == [
        "PLAINTEXT=127.0.0.1:9094",
        "OUT=0.0.0.0:9194",
        "ANY=127.0.0.1:0",
    ]
    assert [str(each) for each in third.advertised_listeners] == ["OUT=broker.example:19094"]


@pytest.mark.parametrize(
    ("attribute", "given", "share"),
    [
        ("chunk_pool_bytes", "1GiB", 256 * MIB),
        ("cache_bytes", "0", 0),
        ("cache_bytes", "64MiB", 16 * MIB),
        ("cache_disk_bytes", "4GiB", GIB),
        ("fetch_buffer_bytes", "128MiB", 32 * MIB),
        ("fetch_buffer_bytes", "2MiB", MIB),  # no less than the option allows
        ("wal_max_bytes", "4GiB", GIB),
        ("s3_concurrency", "64", 16),
        ("s3_concurrency", "0", 0),  # no limit stays none
        ("s3_concurrency", "2", 1),
        ("flush_objects_per_minute", "240", 60),
        ("max_connections_count", "10000", 2500),
        ("group_state_bytes", "256MiB", 64 * MIB),
        ("readahead_bytes", "8MiB", 8 * MIB),  # of one consumer
        ("max_connections_per_ip_count", "10", 10),
        ("max_group_members_count", "1000", 1000),  # what all have in common
    ],
)
def test_budgets_are_divided_among_brokers_and_per_client_limits_are_not(
    attribute: str, given: str, share: int
) -> None:
    option = next(each for each in options() if each.attribute == attribute)
    assert {started_with(each).value(option) for each in plans(4, **{attribute: given})} == {share}


def test_options_reach_the_brokers_unchanged() -> None:
    given = {
        "super_users": ("User:CN=a,OU=b", "User:--c"),
        "auto_create_topics": "false",
        "namespace": "mine",
        "flush_interval_seconds": "1500ms",
        "s3_endpoint": "http://127.0.0.1:9000",
        "store": "s3://bucket/prefix",
    }
    for plan in plans(2, **given):
        settings = started_with(plan)
        assert settings.super_users == ("User:CN=a,OU=b", "User:--c")
        assert not settings.auto_create_topics
        assert settings.s3_path_style, "what follows from another option follows there, too"
        assert settings.readahead_bytes == 8 * MIB
        assert (settings.namespace, settings.flush_interval_seconds) == ("mine", 1.5)
        assert str(settings.store) == "s3://bucket/prefix"


def test_admin_tls_stays_with_the_supervisor_and_all_brokers_get_the_admin_token() -> None:
    flags = {"admin_ssl": "true", "ssl_certificate_file": "cert.pem", "admin_token_file": "token"}
    settings = started_with(plans(2, **flags)[1])
    assert not settings.admin_ssl
    assert settings.admin_token_file == Path("token")


def test_a_restarted_broker_keeps_its_assigned_ports() -> None:
    plan = plans(2, listeners=("127.0.0.1:0",))[1]
    assert [str(each) for each in started_with(plan.on_ports([Address("127.0.0.1", 4711)])).listeners] == [
        "PLAINTEXT=127.0.0.1:4711"
    ]


def test_options_of_the_environment_are_not_there_twice() -> None:
    environment = {"PATH": "/bin", "KAFSCALE_BROKER_ID": "3", "KAFSCALE_CONFIG": "x.toml", "AWS_SECRET_ACCESS_KEY": "s"}
    assert environment_of_brokers(environment, 17) == {
        "PATH": "/bin",
        "AWS_SECRET_ACCESS_KEY": "s",
        "KAFSCALE_SUPERVISOR_PID": "17",
    }
    assert load({}, {"KAFSCALE_SUPERVISOR_PID": "17"}).settings == Settings()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"store": "memory:"}, "can't share --store memory:"),
        ({"listeners": ("A=127.0.0.1:9092", "B=127.0.0.1:9093")}, "--listen: '127.0.0.1:9093' would be taken twice"),
        ({"listeners": ("A=0.0.0.0:9643",)}, "--listen: '0.0.0.0:9644' would be taken twice"),
        ({"listeners": ("A=127.0.0.1:65535",)}, "'A=127.0.0.1:65536' is not a port"),
        ({"chunk_pool_bytes": "1MiB", "max_message_bytes": "1MiB"}, None),
        ({"chunk_pool_bytes": "4MiB", "max_message_bytes": "3MiB"}, "leaves too little for each broker"),
        ({"broker_id": "2147483647"}, "--broker-id"),
        ({"listeners": ("A=127.0.0.1:9092", "B=127.0.0.2:9093")}, None),
    ],
)
def test_impossible_options_are_refused(flags: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert len(plans(2, **flags)) == 2
        return
    with pytest.raises(ConfigError) as caught:
        plans(2, **flags)
    assert message in str(caught.value)
