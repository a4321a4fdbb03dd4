"""The tests of clients as they are, on brokers with TLS, logins and lists: `pytest tests/clients --secured`.

`install` has `broker_process` start such brokers, and has clients log in where they connect to one of them. Users are
`client`, whom lists allow all with topics, groups, transactional ids and the cluster, and `admin`.
"""

from __future__ import annotations

import atexit
import json
import os
import ssl
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kafscale.cli.main import run
from kafscale.testing.certificates import Certificate, make_authority
from tests.devtools import process
from tests.devtools.process import BrokerProcess

PASSWORD = "of-tests"
PROTOCOL, MECHANISM = "SASL_SSL", "PLAIN"  # which kcat of Debian has, too
ALLOWED = {"topic": "*", "group": "*", "transactional-id": "*", "cluster": "kafka-cluster"}
# They have listeners of their own, on which their clients log in already.
LEFT_OUT = ("test_sasl.py", "test_tls.py", "test_acls.py", "test_quotas.py", "test_franz_go.py")

_brokers: set[str] = set()


def install() -> None:
    """Secure what this process starts from now on; modules that have imported it before do without."""
    directory = TemporaryDirectory(prefix="kafscale-secured-")
    atexit.register(directory.cleanup)
    files = Path(directory.name)
    authority = make_authority(files)
    certificate = authority.issue("broker")
    settings = {
        "security.protocol": PROTOCOL,
        "ssl.ca.location": str(authority.ca_file),
        "sasl.mechanism": MECHANISM,
        "sasl.username": "client",
        "sasl.password": PASSWORD,
    }
    for user in ("client", "admin"):
        lines = [f"{name}={value}" for name, value in {**settings, "sasl.username": user}.items()]
        (files / user).write_text("\n".join(lines))
    (files / "password").write_text(PASSWORD)
    (files / "lists").write_text(json.dumps([_allowed(resource, name) for resource, name in ALLOWED.items()]))
    os.environ["KCAT_CONFIG"] = os.environ["KAFSCALE_COMMAND_CONFIG"] = str(files / "client")
    _secure_brokers(files, certificate, settings)
    _secure_confluent(settings)
    _secure_python(authority.ca_file)


def _allowed(resource: str, name: str) -> dict[str, str]:
    """Make a row of `kafscale acls load`."""
    entry = {"principal": "User:client", "host": "*", "operation": "all", "permission": "allow"}
    return {"resource": resource, "name": name, "pattern": "literal", **entry}


def _secure_brokers(files: Path, certificate: Certificate, settings: Mapping[str, str]) -> None:
    security = (
        *("--ssl-certificate-file", str(certificate.certificate_file)),
        *("--ssl-key-file", str(certificate.key_file), "--sasl-mechanisms", MECHANISM),
        *("--authorizer", "acl", "--super-user", "User:admin"),
    )

    @contextmanager
    def broker_process(*options: str, environ: Mapping[str, str] | None = None) -> Iterator[BrokerProcess]:
        with TemporaryDirectory(prefix="kafscale-") as directory:
            broker = BrokerProcess(
                directory=Path(directory),
                options=(*security, *options),
                environ=environ or {},
                protocol=PROTOCOL,
                client_settings=settings,
            )
            for user in ("client", "admin"):
                add = ("users", "add", user, "--iterations", "4096", "--password-file", str(files / "password"))
                _command(*add, "--data-dir", str(broker.data_dir))
            with broker:
                how = ("--bootstrap", broker.bootstrap, "--command-config", str(files / "admin"))
                _brokers.add(broker.bootstrap)
                try:
                    _command("acls", "load", str(files / "lists"), *how)
                except AssertionError as exc:
                    exc.add_note(broker.log)
                    raise
                yield broker

    process.broker_process = broker_process


def _command(*arguments: str) -> None:
    code = run(arguments)
    assert code == 0, f"kafscale {' '.join(arguments)} ended with {code}"


def _secure_confluent(settings: Mapping[str, str]) -> None:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient

    def with_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**settings, **config} if config.get("bootstrap.servers") in _brokers else config

    for name in ("Producer", "Consumer"):  # in C, so that they can't be changed
        base = getattr(confluent_kafka, name)

        class Secured(base):  # type: ignore[misc, valid-type]
            def __init__(self, config: Mapping[str, Any], *arguments: Any, **named: Any) -> None:
                super().__init__(with_settings(config), *arguments, **named)

        setattr(confluent_kafka, name, Secured)
    initialise = AdminClient.__init__

    def initialise_secured(self: AdminClient, config: Mapping[str, Any], *arguments: Any, **named: Any) -> None:
        initialise(self, dict(with_settings(config)), *arguments, **named)

    AdminClient.__init__ = initialise_secured  # type: ignore[method-assign, assignment]


def _secure_python(ca_file: Path) -> None:
    import aiokafka
    from aiokafka.admin import AIOKafkaAdminClient

    with warnings.catch_warnings():  # kafka-python reads its definitions in a deprecated way while it is imported
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka
    settings = {
        "security_protocol": PROTOCOL,
        "ssl_context": ssl.create_default_context(cafile=ca_file),
        "sasl_mechanism": MECHANISM,
        "sasl_plain_username": "client",
        "sasl_plain_password": PASSWORD,
    }
    of_kafka_python = (kafka.KafkaProducer, kafka.KafkaConsumer, kafka.KafkaAdminClient)
    for each in (*of_kafka_python, aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaConsumer, AIOKafkaAdminClient):
        _give(each, settings)


def _give(client: Any, settings: Mapping[str, Any]) -> None:
    initialise = client.__init__

    def initialise_secured(self: Any, *arguments: Any, **named: Any) -> None:
        chosen = settings if str(named.get("bootstrap_servers")) in _brokers else {}
        initialise(self, *arguments, **{**chosen, **named})

    client.__init__ = initialise_secured
