"""Kafka's own Java clients with a JAAS config, and kafka-configs.sh, which adds and removes users."""

import subprocess
from pathlib import Path

import pytest

from bench.peers.kafka import class_path
from kafscale.config import SaslMechanism
from tests.devtools.java import JVM_FLAGS, JavaTools
from tests.devtools.process import broker_process
from tests.devtools.sasl import sign, signing_key, write_key_set
from tests.devtools.tools import RUN_TIMEOUT_SECONDS

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

CONFIGS = "kafka.admin.ConfigCommand"
PASSWORD = "alice-secret"
MODULES = "org.apache.kafka.common.security"
SESSION_MS = 2000


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    url = write_key_set(tmp_path_factory.mktemp("sasl") / "keys.json", signing_key())
    mechanisms = [option for each in SaslMechanism for option in ("--sasl-mechanisms", each.value)]
    with broker_process(
        *("--listen", "SASL_PLAINTEXT=127.0.0.1:0", "--sasl-oauthbearer-jwks-endpoint-url", url, *mechanisms),
        *("--connections-max-reauth", f"{SESSION_MS}ms"),
    ) as process:
        yield process


@pytest.fixture(scope="module")
def admin(broker):
    """Over the listener without SASL."""
    return JavaTools(bootstrap=broker.bootstrap, class_path=class_path())


@pytest.fixture(scope="module")
def java(broker):
    return JavaTools(bootstrap=broker.further_listeners[0], class_path=class_path())


@pytest.fixture
def alice(admin):
    """Add alice for both mechanisms, as the documentation of Kafka says."""
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        added = f"{mechanism}=[iterations=4096,password={PASSWORD}]"
        said = admin(CONFIGS, "--alter", "--add-config", added, "--entity-type", "users", "--entity-name", "alice")
        assert "Completed updating config for user alice." in said


def client_config(path: Path, mechanism: str, password: str = PASSWORD) -> Path:
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
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={module} required {login};\n{further}"
    )
    return path


@pytest.mark.parametrize("mechanism", [each.value for each in SaslMechanism])
def test_every_mechanism(mechanism, alice, java, name, tmp_path, monkeypatch):
    config = client_config(tmp_path / "client.properties", mechanism)
    allowed = (tmp_path / "token").as_uri()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={allowed}")
    with_config = ("--command-config", str(config))
    java("TopicCommand", "--create", "--topic", name, *with_config)
    assert name in java("TopicCommand", "--list", *with_config).split()


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
    bootstrap = f"bootstrap.servers={broker.further_listeners[0]}"
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
