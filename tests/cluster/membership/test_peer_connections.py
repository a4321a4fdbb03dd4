"""By which listener a broker reaches the others, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafscale.cluster.membership.node import Endpoint
from kafscale.cluster.membership.peers.heartbeats import was_refused
from kafscale.cluster.membership.peers.peer_connections import Connect, InterBrokerLogin, peer_connector
from kafscale.cluster.membership.records import BrokerRecord, BrokerState
from kafscale.config import Address, Listener, SslSettings
from kafscale.errors import BrokerUnavailable, ConfigError, StartupError
from kafscale.server.kafka.binding import bind
from kafscale.testing.certificates import make_authority
from tests.devtools.fakes.memory_broker import memory_settings
from tests.devtools.processes.process import BrokerProcess

SSL_ONLY = (Listener("SSL", "127.0.0.1", 9093),)
BOTH = (Listener("SSL", "127.0.0.1", 9093), Listener("PLAINTEXT", "127.0.0.1", 9092))

WITH_CERTIFICATE = {"ssl": SslSettings(ssl_certificate_file=Path("certificate.pem"), ssl_key_file=Path("key.pem"))}


def properties(directory: Path, *lines: str) -> Path:
    path = directory / "broker.properties"
    path.write_text("\n".join(lines))
    return path


def lines(listeners: tuple[Listener, ...], **changes: object) -> Connect | None:
    settings = memory_settings(listeners=listeners, **WITH_CERTIFICATE, **changes)
    return peer_connector(settings, InterBrokerLogin.open(settings))


def test_without_settings_of_a_client_a_listener_without_tls_and_sasl_is_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert lines(BOTH) is not None
    assert lines(SSL_ONLY) is None
    assert not caplog.messages  # one that is alone does well without


@pytest.mark.parametrize("several", [False, True])
def test_only_a_broker_of_several_warns_about_missing_inter_broker_security(tmp_path: Path, several: bool) -> None:
    """Each start of a broker that is alone and secured told of others that it can't reach."""
    (tmp_path / "bucket").mkdir()
    shown = make_authority(tmp_path).issue("broker")
    options = ["--ssl-certificate-file", str(shown.certificate_file), "--ssl-key-file", str(shown.key_file)]
    if several:
        options += ["--several-brokers", "--broker-id", "1", "--store", f"file:{tmp_path / 'bucket'}"]
    with BrokerProcess(directory=tmp_path / "broker", options=options, protocol="SSL") as broker:
        assert ("no listener is secured as --inter-broker-config says" in broker.log) is several
        assert several or "WARNING" not in broker.log


def test_the_settings_of_a_client_say_which_listener(tmp_path: Path) -> None:
    config = properties(tmp_path, "security.protocol=SSL")
    assert lines(SSL_ONLY, inter_broker_config=config) is not None
    assert lines(BOTH, inter_broker_config=config, inter_broker_listener="SSL") is not None
    with pytest.raises(ConfigError, match="'PLAINTEXT' is PLAINTEXT, and this broker connects by SSL"):
        lines(BOTH, inter_broker_config=config, inter_broker_listener="PLAINTEXT")
    with pytest.raises(ConfigError, match="'SSL' is SSL, and this broker connects by PLAINTEXT"):
        lines(BOTH, inter_broker_listener="SSL")
    with pytest.raises(ConfigError, match="--inter-broker-listener: 'OTHER' is not a listener"):
        lines(BOTH, inter_broker_listener="OTHER")
    with pytest.raises(StartupError, match=r"--inter-broker-config .*: security.protocol: 'NONE' is not known"):
        lines(BOTH, inter_broker_config=properties(tmp_path, "security.protocol=NONE"))


def test_a_login_reload_also_reloads_its_files(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    ca = f"ssl.ca.location={authority.ca_file}"
    user = ("security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "sasl.username=broker")
    path = properties(tmp_path, ca, *user, "sasl.password=old")
    login = InterBrokerLogin.open(memory_settings(inter_broker_config=path))
    assert login is not None
    assert login.paths == [path, authority.ca_file]
    first = login.security
    for bad, message in (
        (("sasl.mechanism=NONE", *user[:1]), "NONE"),
        (("security.protocol=SSL",), "security.protocol is SSL now, and was SASL_SSL; restart the broker"),
    ):
        properties(tmp_path, ca, *bad)
        with pytest.raises(StartupError, match=message):
            login.load()
        assert login.security is first
    properties(tmp_path, *user, "sasl.password=new")
    login.load()
    assert login.security is not first
    assert login.paths == [path]


async def test_a_refused_connection_is_recognized() -> None:
    bound = await bind("PLAINTEXT", Address("127.0.0.1", 0), option="--listen")
    for socket in bound.sockets:
        await socket.aclose()
    connect = lines((Listener("PLAINTEXT", "127.0.0.1", 9092),))
    assert connect is not None
    with pytest.raises(BrokerUnavailable) as caught:
        await connect(2, record(PLAINTEXT=Endpoint("127.0.0.1", bound.port)))
    assert was_refused(caught.value)
    with pytest.raises(BrokerUnavailable) as caught:
        await connect(2, record(OTHER=Endpoint("127.0.0.1", bound.port)))
    assert not was_refused(caught.value)


def record(**endpoints: Endpoint | None) -> BrokerRecord:
    return BrokerRecord(
        incarnation=1, state=BrokerState.LIVE, endpoints=endpoints, directory_id="", acknowledges_locally=False
    )
