"""Kafka's own Java clients over TLS and with a JAAS config, and kafka-configs.sh, which adds and removes users."""

import subprocess
from pathlib import Path

import pytest

from bench.peers.kafka import class_path
from kafscale.config import SaslMechanism, SecurityProtocol
from kafscale.testing.certificates import make_authority
from tests.devtools.external.logins import WITH_LISTS, allow, disallow
from tests.devtools.external.tools import RUN_TIMEOUT_SECONDS
from tests.devtools.processes.sasl import sasl_broker, sign
from tests.java.java_tools import JVM_FLAGS, JavaTools

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

CONFIGS = "kafka.admin.ConfigCommand"
PASSWORD = "alice-secret"
MODULES = "org.apache.kafka.common.security"
SESSION_MS = 2000
PLAIN_TCP, WITH_TLS = SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL


@pytest.fixture(scope="module")
def broker():
    with sasl_broker("--connections-max-reauth", f"{SESSION_MS}ms") as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker):
    """Over the listener without SASL."""
    return JavaTools(bootstrap=broker.process.bootstrap, class_path=class_path())


@pytest.fixture(scope="module")
def java(broker):
    return tools(broker, PLAIN_TCP)


def tools(broker, protocol):
    """Return the tools for a listener; what else they need is in `client_config`."""
    return JavaTools(bootstrap=broker.bootstrap(protocol), class_path=class_path())


@pytest.fixture
def alice(admin):
    """Add alice for both mechanisms, as the documentation of Kafka says."""
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        added = f"{mechanism}=[iterations=4096,password={PASSWORD}]"
        said = admin(CONFIGS, "--alter", "--add-config", added, "--entity-type", "users", "--entity-name", "alice")
        assert "Completed updating config for user alice." in said


def client_config(path: Path, mechanism: str, password: str = PASSWORD, *, ca_file: Path | None = None) -> Path:
    """Write the settings of alice, with TLS if there is an authority to trust."""
    module = f"{MODULES}.plain.PlainLoginModule" if mechanism == "PLAIN" else f"{MODULES}.scram.ScramLoginModule"
    login = f'username="alice" password="{password}"'
    further = ""
    if mechanism == "OAUTHBEARER":
        token = path.with_name("token")
        token.write_text(sign(lifetime_seconds=600))
        module, login = f"{MODULES}.oauthbearer.OAuthBearerLoginModule", ""
        further = (
            f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}\n"
            f"sasl.login.callback.handler.class={MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler\n"
        )
    path.write_text(
        f"{trusting(ca_file)}security.protocol=SASL_{'PLAINTEXT' if ca_file is None else 'SSL'}\n"
        f"sasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={module} required {login};\n{further}"
    )
    return path


def trusting(ca_file: Path | None) -> str:
    return "" if ca_file is None else f"ssl.truststore.type=PEM\nssl.truststore.location={ca_file}\n"


def topic_round(java, name, config):
    java("TopicCommand", "--create", "--topic", name, "--command-config", str(config))
    assert name in java("TopicCommand", "--list", "--command-config", str(config)).split()


@pytest.mark.parametrize("protocol", [PLAIN_TCP, WITH_TLS])
@pytest.mark.parametrize("mechanism", [each.value for each in SaslMechanism])
def test_every_mechanism(mechanism, protocol, alice, broker, name, tmp_path, monkeypatch):
    ca_file = broker.ca_file if protocol is WITH_TLS else None
    config = client_config(tmp_path / "client.properties", mechanism, ca_file=ca_file)
    allowed = (tmp_path / "token").as_uri()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={allowed}")
    topic_round(tools(broker, protocol), name, config)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("shows_certificate", [False, True], ids=["without-certificate", "with-certificate"])
def test_tls(version, shows_certificate, broker, name, tmp_path):
    """With stores in PEM, as Kafka has them since KIP-651."""
    config = tmp_path / "client.properties"
    shown = ""
    if shows_certificate:
        client = broker.tls.authority.issue("client")
        both = tmp_path / "both.pem"
        both.write_text(client.key_file.read_text() + client.certificate_file.read_text())
        shown = f"ssl.keystore.type=PEM\nssl.keystore.location={both}\n"
    versions = f"ssl.enabled.protocols={version}\nssl.protocol={version}\n"
    config.write_text(f"security.protocol=SSL\n{trusting(broker.ca_file)}{shown}{versions}")
    topic_round(tools(broker, SecurityProtocol.SSL), name, config)


def test_a_client_with_a_certificate_gets_the_acls_of_its_principal(name, tmp_path):
    with sasl_broker(*WITH_LISTS) as broker:
        allow(broker, "client", name)
        java = tools(broker, SecurityProtocol.SSL)
        config = tmp_path / "client.properties"
        both = tmp_path / "both.pem"
        shown = broker.tls.authority.issue("client")
        both.write_text(shown.key_file.read_text() + shown.certificate_file.read_text())
        keystore = f"ssl.keystore.type=PEM\nssl.keystore.location={both}\n"
        config.write_text(f"security.protocol=SSL\n{trusting(broker.ca_file)}{keystore}")
        topic_round(java, name, config)
        with pytest.raises(AssertionError, match="Not authorized to Create Topic"):
            java("TopicCommand", "--create", "--topic", f"{name}-of-others", "--command-config", str(config))
        disallow(broker, "client")
        assert name not in java("TopicCommand", "--list", "--command-config", str(config))


def test_a_broker_of_another_authority_is_not_trusted(broker, tmp_path):
    other = make_authority(tmp_path, "another")
    config = tmp_path / "client.properties"
    config.write_text(f"security.protocol=SSL\n{trusting(other.ca_file)}")
    with pytest.raises(AssertionError, match="SSL handshake failed"):
        tools(broker, SecurityProtocol.SSL)("TopicCommand", "--list", "--command-config", str(config))


def test_users_are_described_and_removed(alice, admin, java, tmp_path):
    described = admin(CONFIGS, "--describe", "--entity-type", "users", "--entity-name", "alice")
    assert "SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-256=iterations=4096" in described
    deleted = ("--alter", "--delete-config", "SCRAM-SHA-256", "--entity-type", "users", "--entity-name", "alice")
    admin(CONFIGS, *deleted)
    described = admin(CONFIGS, "--describe", "--entity-type", "users", "--entity-name", "alice")
    assert "SCRAM-SHA-512=iterations=4096" in described
    assert "SCRAM-SHA-256" not in described
    with_config = ("--command-config", str(client_config(tmp_path / "c", "SCRAM-SHA-256")))
    with pytest.raises(AssertionError, match="invalid credentials"):
        java("TopicCommand", "--list", *with_config)


def test_a_wrong_password(alice, java, tmp_path):
    with_config = ("--command-config", str(client_config(tmp_path / "c", "SCRAM-SHA-512", "wrong")))
    with pytest.raises(AssertionError, match="invalid credentials with SASL mechanism SCRAM-SHA-512"):
        java("TopicCommand", "--list", *with_config)


@pytest.mark.parametrize("iterations", [4095, 16_385])
def test_iterations_that_kafka_refuses_too(iterations, admin):
    added = f"SCRAM-SHA-512=[iterations={iterations},password=x]"
    with pytest.raises(AssertionError):
        admin(CONFIGS, "--alter", "--add-config", added, "--entity-type", "users", "--entity-name", "bob")


def test_a_producer_renews_its_session_without_one_failed_send(alice, broker, name, tmp_path):
    config = client_config(tmp_path / "c", "SCRAM-SHA-512")
    command = ["java", *JVM_FLAGS, "-cp", class_path(), "org.apache.kafka.tools.ProducerPerformance"]
    size = ("--topic", name, "--num-records", "700", "--record-size", "10", "--throughput", "100")
    bootstrap = f"bootstrap.servers={broker.bootstrap(PLAIN_TCP)}"
    properties = ("--producer-props", bootstrap, "retries=0", "enable.idempotence=false", "acks=1")
    done = subprocess.run(
        [*command, *size, "--producer.config", str(config), *properties],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "700 records sent" in done.stdout
    assert "Exception" not in done.stdout + done.stderr
