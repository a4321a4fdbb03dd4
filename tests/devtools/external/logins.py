"""Real clients that log in, written as their users write them: each sends a record and reads it back.

A client is a function of a `Login` and a topic. It returns None, or the client's own reason for a refusal. An
administrator without SASL makes users and grants them their rights.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import ssl
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import attrs
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # which it has, and does not list
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kafscale.config import SaslMechanism, SecurityProtocol
from kafscale.testing.certificates import CertificateFiles
from tests.devtools.external.clients import DEADLINE_SECONDS, poll_until
from tests.devtools.external.tools import go_program
from tests.devtools.processes.sasl import PASSWORD, SaslBroker, sign

with warnings.catch_warnings():  # kafka-python reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import KafkaError as KafkaPythonError
    from kafka.net.sasl.oauth import AbstractTokenProvider

SCRAM, PLAIN, OAUTH = "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"
MTLS = "mTLS"  # no mechanism of SASL: who shows a certificate needs none
MECHANISMS = (*(mechanism.value for mechanism in SaslMechanism), MTLS)
WRONG = "not the password"
BOOTSTRAP_MS = 1500
VALUE = b"of a client"


@attrs.frozen(kw_only=True)
class Login:
    """Credentials of a client, and how it logs in.

    `token` makes a new token on each call. `trusted` is set where the client trusts another authority than the
    broker's.
    """

    broker: SaslBroker
    mechanism: str
    user: str = ""
    password: str = PASSWORD
    token: Callable[[], str] = sign
    protocol: SecurityProtocol = SecurityProtocol.SASL_PLAINTEXT
    certificate: CertificateFiles | None = None
    trusted: Path | None = None

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap(self.protocol)

    @property
    def ca_file(self) -> str:
        return str(self.trusted or self.broker.ca_file)

    @property
    def fails(self) -> bool:
        """Tell whether this login should fail; clients that retry then give up soon."""
        return self.password == WRONG or self.trusted is not None

    def context(self) -> ssl.SSLContext:
        return self.broker.tls.certificate.client_context(Path(self.ca_file), shown=self.certificate)


Client = Callable[[Login, str], str | None]

_MODULES = "org.apache.kafka.common.security"


def java_properties(login: Login, directory: Path) -> dict[str, str]:
    found = {
        "security.protocol": login.protocol.value,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": login.ca_file,
    }
    if login.certificate is not None:
        both = directory / "both.pem"
        both.write_text(login.certificate.key_file.read_text() + login.certificate.certificate_file.read_text())
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(both)}
    if login.mechanism == MTLS:
        return found
    module, options = "scram.ScramLoginModule", f' username="{login.user}" password="{login.password}"'
    if login.mechanism == PLAIN:
        module = "plain.PlainLoginModule"
    if login.mechanism == OAUTH:
        module, options = "oauthbearer.OAuthBearerLoginModule", ""
        (directory / "token").write_text(login.token())
        found["sasl.oauthbearer.token.endpoint.url"] = (directory / "token").as_uri()
        found["sasl.login.callback.handler.class"] = f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
    return found | {
        "sasl.mechanism": login.mechanism,
        "sasl.jaas.config": f"{_MODULES}.{module} required{options};",
    }


def librdkafka_config(login: Login) -> dict[str, str]:
    """Return the settings without those of a token."""
    config = {
        "bootstrap.servers": login.bootstrap,
        "security.protocol": login.protocol.value,
        "ssl.ca.location": login.ca_file,
    }
    if login.certificate is not None:
        config["ssl.certificate.location"] = str(login.certificate.certificate_file)
        config["ssl.key.location"] = str(login.certificate.key_file)
    if login.mechanism != MTLS:
        config["sasl.mechanism"] = login.mechanism
    if login.mechanism not in (MTLS, OAUTH):
        config |= {"sasl.username": login.user, "sasl.password": login.password}
    return config


def confluent_config(login: Login) -> dict[str, Any]:
    config = librdkafka_config(login)
    if login.mechanism == OAUTH:
        return {**config, "oauth_cb": lambda _: (login.token(), time.time() + 300)}
    return dict(config)


def confluent(login: Login, topic: str) -> str | None:
    errors: list[KafkaError] = []
    config = {**confluent_config(login), "error_cb": errors.append}
    producer = Producer({**config, "message.timeout.ms": 60_000, "linger.ms": 0})
    producer.produce(topic, VALUE, on_delivery=lambda error, _: errors.append(error) if error else None)
    poll_until(lambda: len(producer) == 0 or refused(errors), lambda: producer.poll(0.05), what="delivered or refused")
    if why := refused(errors):
        producer.purge()
        return why
    consumer = Consumer({**config, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(DEADLINE_SECONDS)
    consumer.close()
    assert message is not None
    assert message.value() == VALUE
    return None


def refused(errors: Sequence[KafkaError]) -> str | None:
    """Return the first error that a retry would not change."""
    final = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    return next((error.str() for error in errors if error.code() in final), None)


def kcat(login: Login, topic: str) -> str | None:
    """Log in by kcat, which has only unsigned tokens of its own."""
    settings = {**librdkafka_config(login), "message.timeout.ms": "60000"}
    if login.mechanism == OAUTH:
        settings |= {
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={login.user}",
        }
    flags = [flag for name, value in settings.items() for flag in ("-X", f"{name}={value}")]
    produced = _run(["kcat", *flags, "-P", "-t", topic], send=VALUE)
    if produced.returncode != 0:
        return produced.stderr.decode()
    consumed = _run(["kcat", *flags, "-C", "-t", topic, "-o", "beginning", "-c", "1", "-q"])
    assert consumed.stdout.strip() == VALUE, consumed.stderr
    return None


@cache
def kcat_does_scram() -> bool:
    """Tell whether kcat can log in by SCRAM.

    Until 2.6.1 librdkafka repeats its nonce in SCRAM's last message, which RFC 5802 and Kafka 4 refuse.
    """
    version = re.search(rb"librdkafka (\d+)\.(\d+)\.(\d+)", _run(["kcat", "-V"]).stdout)
    return version is not None and tuple(map(int, version.groups())) >= (2, 6, 1)


def _run(
    command: Sequence[str], *, send: bytes = b"", environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command, input=send, env={**os.environ, **(environ or {})}, capture_output=True, timeout=90, check=False
    )


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: Callable[[], str] = sign) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token()


class AioTokens(AioTokenProvider):  # type: ignore[misc]
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token()


def python_config(login: Login, tokens: object) -> dict[str, Any]:
    config = {
        "bootstrap_servers": login.bootstrap,
        "security_protocol": login.protocol.value,
        "ssl_context": login.context(),
    }
    if login.mechanism == MTLS:
        return config
    config["sasl_mechanism"] = login.mechanism
    if login.mechanism == OAUTH:
        return {**config, "sasl_oauth_token_provider": tokens}
    return {**config, "sasl_plain_username": login.user, "sasl_plain_password": login.password}


def kafka_python(login: Login, topic: str) -> str | None:
    config = python_config(login, Tokens(login.token))
    try:
        producer = KafkaProducer(**config, bootstrap_timeout_ms=BOOTSTRAP_MS if login.fails else 60_000)
    except KafkaPythonError as exc:
        gc.collect()  # it leaves sockets behind, which are warned of where they are found: not in another test
        return str(exc)
    try:
        producer.send(topic, VALUE).get(DEADLINE_SECONDS)
    except KafkaPythonError as exc:
        return str(exc)
    finally:
        producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=60_000, **config)
    assert next(consumer).value == VALUE
    consumer.close()
    return None


def aiokafka(login: Login, topic: str) -> str | None:
    async def produce_and_consume() -> None:
        config = python_config(login, AioTokens(login.token))
        producer = AIOKafkaProducer(**config)
        try:
            await producer.start()
            await producer.send_and_wait(topic, VALUE)
        finally:
            await producer.stop()
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **config) as consumer:
            assert (await consumer.getone()).value == VALUE

    try:
        asyncio.run(asyncio.wait_for(produce_and_consume(), 2 * DEADLINE_SECONDS))
    except AiokafkaError as exc:
        return str(exc)
    return None


def franz_go(login: Login, topic: str) -> str | None:
    flags = {"bootstrap-server": login.bootstrap, "ca-file": login.ca_file, "topic": topic, "value": VALUE.decode()}
    environ = {}
    if login.certificate is not None:
        flags["certificate-file"] = str(login.certificate.certificate_file)
        flags["key-file"] = str(login.certificate.key_file)
    if login.mechanism != MTLS:
        flags |= {"mechanism": login.mechanism, "user": login.user}
        environ["SECRET"] = login.token() if login.mechanism == OAUTH else login.password
    if not login.protocol.uses_tls:
        del flags["ca-file"]
    command = [str(go_program("login")), *(f"--{name}={value}" for name, value in flags.items())]
    done = _run(command, environ=environ)
    if done.returncode != 0:
        return done.stderr.decode()
    assert done.stdout.strip() == VALUE
    return None


# Options of a broker. Certificates are of the user that is their common name.
WITH_LISTS = (
    *("--authorizer", "acl", "--super-user", "User:ANONYMOUS"),
    *("--ssl-principal-mapping-rules", "RULE:^CN=(.*)$/$1/"),
)
SCRAMS = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
TOPIC_AND_GROUP = ResourceType.TOPIC, ResourceType.GROUP
_numbers = count()


def login_of_somebody(
    broker: SaslBroker, mechanism: str, topic: str, protocol: SecurityProtocol = SecurityProtocol.SASL_SSL
) -> Login:
    """Make a user with rights to this topic and its group alone."""
    user = f"user-{next(_numbers)}"
    allow(broker, user, topic)
    if mechanism == MTLS:
        certificate = broker.tls.authority.issue(user)
        protocol = SecurityProtocol.SSL
        return Login(broker=broker, mechanism=mechanism, user=user, protocol=protocol, certificate=certificate)
    add(broker, user)
    token = partial(sign, {"sub": user})
    return Login(broker=broker, mechanism=mechanism, user=user, token=token, protocol=protocol)


def add(broker: SaslBroker, user: str) -> None:
    for scram in SCRAMS:
        _alter(broker, UserScramCredentialUpsertion(user, ScramCredentialInfo(scram, 4096), PASSWORD.encode()))
    broker.process.settle()


def remove(broker: SaslBroker, user: str) -> None:
    for scram in SCRAMS:
        _alter(broker, UserScramCredentialDeletion(user, scram))
    broker.process.settle()


def allow(
    broker: SaslBroker,
    user: str,
    name: str,
    *,
    kinds: Sequence[ResourceType] = TOPIC_AND_GROUP,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> None:
    allowed = f"User:{user}", "*", AclOperation.ALL, AclPermissionType.ALLOW
    admin = _admin(broker)
    for future in admin.create_acls([AclBinding(kind, name, pattern, *allowed) for kind in kinds]).values():
        future.result(DEADLINE_SECONDS)
    broker.process.settle()


def disallow(broker: SaslBroker, user: str) -> None:
    everything = ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None, AclOperation.ANY
    of_user = AclBindingFilter(*everything, AclPermissionType.ANY)  # type: ignore[arg-type] # None is for any
    admin = _admin(broker)
    for future in admin.delete_acls([of_user]).values():
        assert list(future.result(DEADLINE_SECONDS))
    broker.process.settle()


def _alter(broker: SaslBroker, change: UserScramCredentialUpsertion | UserScramCredentialDeletion) -> None:
    admin = _admin(broker)
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(DEADLINE_SECONDS)


def _admin(broker: SaslBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.process.bootstrap})
