"""The tests of clients as they are, on brokers with TLS, logins and lists: `pytest tests/clients --secured`.

`install` has `broker_process` and `running_broker` start such brokers, and has clients log in where they connect to one
of them. Users are `client`, whom lists allow all with topics, groups, transactional ids and the cluster, and `admin`.
"""

from __future__ import annotations

import atexit
import json
import os
import ssl
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kafscale.cli.main import run
from kafscale.config import SaslMechanism, SecurityProtocol
from kafscale.testing import background_broker
from kafscale.testing.certificates import Authority, CertificateFiles, make_authority
from kafscale.testing.secured_broker import SecuredBroker, login_settings, secured_broker
from tests.devtools.processes import process
from tests.devtools.processes.process import KAFSCALE, BrokerProcess

PASSWORD = "of-tests"
PROTOCOL, MECHANISM = SecurityProtocol.SASL_SSL, SaslMechanism.PLAIN  # which kcat of Debian has, too
ALLOWED = {"topic": "*", "group": "*", "transactional-id": "*", "cluster": "kafka-cluster"}
# They have listeners of their own, on which their clients log in already.
LEFT_OUT = ("test_sasl.py", "test_tls.py", "test_acls.py", "test_quotas.py", "test_franz_go.py")

_brokers: dict[str, Mapping[str, str]] = {}  # what a client needs at each, by its address


def install() -> None:
    """Secure what this process starts from now on; modules that have imported it before do without."""
    directory = TemporaryDirectory(prefix="kafscale-secured-")
    atexit.register(directory.cleanup)
    files = Path(directory.name)
    authority = make_authority(files)
    certificate = authority.issue("broker")
    for user in ("client", "admin"):
        lines = [f"{name}={value}" for name, value in _settings(authority, user).items()]
        (files / user).write_text("\n".join(lines))
    (files / "password").write_text(PASSWORD)
    (files / "lists").write_text(json.dumps([_allowed(resource, name) for resource, name in ALLOWED.items()]))
    os.environ["KCAT_CONFIG"] = os.environ["KAFSCALE_COMMAND_CONFIG"] = str(files / "client")
    _secure_brokers(files, certificate, _settings(authority, "client"))
    _secure_background_brokers()
    _secure_confluent()
    _secure_python()


def _settings(authority: Authority, user: str) -> dict[str, str]:
    return login_settings(PROTOCOL, authority.ca_file, MECHANISM, username=user, password=PASSWORD)


def _allowed(resource: str, name: str) -> dict[str, str]:
    """Make a row of `kafscale acls load`."""
    entry = {"principal": "User:client", "host": "*", "operation": "all", "permission": "allow"}
    return {"resource": resource, "name": name, "pattern": "literal", **entry}


def _secure_brokers(files: Path, certificate: CertificateFiles, settings: Mapping[str, str]) -> None:
    security = (
        *("--ssl-certificate-file", str(certificate.certificate_file)),
        *("--ssl-key-file", str(certificate.key_file), "--sasl-mechanisms", MECHANISM),
        *("--authorizer", "acl", "--super-user", "User:admin"),
    )

    @contextmanager
    def broker_process(
        *options: str,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
        program: Sequence[str] = KAFSCALE,
    ) -> Iterator[BrokerProcess]:
        with nullcontext(directory) if directory is not None else TemporaryDirectory(prefix="kafscale-") as used:
            broker = BrokerProcess(
                directory=Path(used),
                options=(*security, *options),
                environ=environ or {},
                program=program,
                protocol=PROTOCOL,
                client_settings=settings,
            )
            for user in ("client", "admin"):
                add = ("users", "add", user, "--iterations", "4096", "--password-file", str(files / "password"))
                _command(*add, "--data-dir", str(broker.data_dir))
            with broker:
                how = ("--bootstrap", broker.bootstrap, "--command-config", str(files / "admin"))
                _brokers[broker.bootstrap] = settings
                try:
                    _command("acls", "load", str(files / "lists"), *how)
                except AssertionError as exc:
                    exc.add_note(broker.log)
                    raise
                yield broker

    process.broker_process = broker_process


def _secure_background_brokers() -> None:
    @contextmanager
    def running_broker(**given: Any) -> Iterator[SecuredBroker]:
        with secured_broker(**given) as broker:
            broker.add_user("client", PASSWORD)
            for resource, name in ALLOWED.items():
                allowed: dict[str, Any] = {resource.replace("-", "_"): name}
                broker.allow("client", "all", **allowed)
            _brokers[broker.bootstrap] = broker.client_settings("client", mechanism=MECHANISM)
            yield broker

    background_broker.running_broker = running_broker


def _command(*arguments: str) -> None:
    code = run(arguments)
    assert code == 0, f"kafscale {' '.join(arguments)} ended with {code}"


def _secure_confluent() -> None:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient

    def with_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**_brokers.get(str(config.get("bootstrap.servers")), {}), **config}

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


def _secure_python() -> None:
    import aiokafka
    from aiokafka.admin import AIOKafkaAdminClient

    with warnings.catch_warnings():  # kafka-python reads its definitions in a deprecated way while it is imported
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka
    of_kafka_python = (kafka.KafkaProducer, kafka.KafkaConsumer, kafka.KafkaAdminClient)
    for client in (*of_kafka_python, aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaConsumer, AIOKafkaAdminClient):
        _give_settings(client)


def _give_settings(client: Any) -> None:
    initialise = client.__init__

    def initialise_secured(self: Any, *arguments: Any, **named: Any) -> None:
        settings = _brokers.get(str(named.get("bootstrap_servers")))
        initialise(self, *arguments, **{**({} if settings is None else _for_python(settings)), **named})

    client.__init__ = initialise_secured


def _for_python(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings as kafka-python and aiokafka call them."""
    context = ssl.create_default_context(cafile=settings["ssl.ca.location"])
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    return {
        "security_protocol": settings["security.protocol"],
        "ssl_context": context,
        "sasl_mechanism": settings["sasl.mechanism"],
        "sasl_plain_username": settings["sasl.username"],
        "sasl_plain_password": settings["sasl.password"],
    }
