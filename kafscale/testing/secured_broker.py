"""A broker with TLS, users and access control lists, in a thread; the fixture `kafscale_secured_broker` gives one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from kafscale.cluster.registries.scram_users import CredentialKey
from kafscale.config import SaslMechanism, SecurityProtocol
from kafscale.errors import ConfigError
from kafscale.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from kafscale.security.verifiers import ITERATIONS_LEAST, SCRAM_TYPES, ScramVerifier, make_verifier
from kafscale.testing.background_broker import BackgroundBroker, running, settings_of
from kafscale.testing.certificates import Authority, CertificateFiles, common_name, make_authority

__tracebackhide__ = True  # pytest shows the line of the test instead

ADMIN = "admin"
KEY_BYTES = 32


def login_settings(
    protocol: SecurityProtocol, ca_file: Path, mechanism: SaslMechanism, *, username: str, password: str
) -> dict[str, str]:
    """Return the client settings for a login, by librdkafka's names."""
    settings = {"security.protocol": protocol.value}
    if protocol.uses_tls:
        settings["ssl.ca.location"] = str(ca_file)
    if protocol.uses_sasl:
        settings |= {"sasl.mechanism": mechanism.value, "sasl.username": username, "sasl.password": password}
    return settings


@attrs.define(eq=False, repr=False, kw_only=True)
class SecuredBroker(BackgroundBroker):
    """A secured broker, made by `secured_broker`. The user `admin` may do everything."""

    authority: Authority
    _passwords: dict[str, str] = attrs.field(factory=dict, init=False)

    @property
    def ca_file(self) -> Path:
        return self.authority.ca_file

    @property
    def protocol(self) -> SecurityProtocol:
        return self.settings.protocol_of(self.settings.listeners[0])

    def client_settings(self, user: str, *, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """Return settings for confluent-kafka, with `bootstrap.servers`.

        They also suit `kafscale.login.security.client_security`. On an SSL listener the user gets a certificate, and is
        `User:CN=…`. Raises ConfigError for an unknown mechanism or user.
        """
        settings = {"bootstrap.servers": self.bootstrap}
        if not self.protocol.uses_sasl:
            certificate = self.issue_certificate(user)
            settings["ssl.certificate.location"] = str(certificate.certificate_file)
            settings["ssl.key.location"] = str(certificate.key_file)
            return settings | login_settings(self.protocol, self.ca_file, SaslMechanism.PLAIN, username="", password="")
        if mechanism not in list(SaslMechanism) or mechanism == SaslMechanism.OAUTHBEARER:
            raise ConfigError(
                f"'{mechanism}' is not a mechanism for passwords; allowed: {', '.join(PASSWORD_MECHANISMS)}"
            )
        if user not in self._passwords:
            raise ConfigError(f"there is no user '{user}'; add it by add_user")
        return settings | login_settings(
            self.protocol, self.ca_file, SaslMechanism(mechanism), username=user, password=self._passwords[user]
        )

    def issue_certificate(self, name: str) -> CertificateFiles:
        """Issue a client's certificate, valid for a day, for the principal `User:CN=` and the name."""
        return self.authority.issue(f"client-{name}", subject=common_name(name))

    # ---- users and lists --------------------------------------------------------------------------------------

    def add_user(self, name: str, password: str | None = None) -> str:
        """Add a user, or change the password. Returns the password, by default a random one."""
        password = secrets.token_urlsafe() if password is None else password
        self._alter(
            {
                CredentialKey(mechanism, name): make_verifier(mechanism, password, iterations=ITERATIONS_LEAST)
                for mechanism in SCRAM_TYPES.values()
            }
        )
        self._passwords[name] = password
        return password

    def remove_user(self, name: str) -> None:
        """Remove a user; open connections stay, as with Kafka."""
        self._alter(dict.fromkeys(CredentialKey(mechanism, name) for mechanism in SCRAM_TYPES.values()))
        self._passwords.pop(name, None)

    def allow(self, user: str, *operations: str, prefixed: bool = False, **resource: str) -> None:
        """Allow a user operations, such as "read", or "all", on one resource: `topic="orders"`, `group="*"`.

        Other resources are `transactional_id` and `cluster="kafka-cluster"`. With `prefixed` the name is a prefix.
        Raises ConfigError for an unknown operation or resource, BrokerUnavailable while the broker is down.
        """
        self._add_lists(user, operations, Permission.ALLOW, prefixed, resource)

    def deny(self, user: str, *operations: str, prefixed: bool = False, **resource: str) -> None:
        """Deny a user operations, even if they are allowed elsewhere; otherwise like `allow`."""
        self._add_lists(user, operations, Permission.DENY, prefixed, resource)

    def remove_acls(self, user: str) -> None:
        """Remove all ACLs of a user. Raises BrokerUnavailable while the broker is down."""

        async def remove() -> None:
            await self._running().services.acls.delete([AclFilter(principal=self._principal(user))])

        self._thread.call(remove)

    def _alter(self, changes: Mapping[CredentialKey, ScramVerifier | None]) -> None:
        async def alter() -> None:
            await self._running().services.scram_users.alter(changes)

        self._thread.call(alter)

    def _add_lists(
        self,
        user: str,
        operations: tuple[str, ...],
        permission: Permission,
        prefixed: bool,
        resource: Mapping[str, str],
    ) -> None:
        resource_type, name = _resource(resource)
        bindings = [
            AclBinding(
                resource_type=resource_type,
                pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
                resource_name=name,
                principal=self._principal(user),
                host=WILDCARD,
                operation=_operation(operation),
                permission=permission,
            )
            for operation in operations
        ]

        async def create() -> None:
            for outcome in await self._running().services.acls.create(bindings):
                if outcome is not None:
                    raise outcome

        self._thread.call(create)

    def _principal(self, user: str) -> str:
        return f"User:{user}" if self.protocol.uses_sasl else f"User:CN={user}"


PASSWORD_MECHANISMS = tuple(
    mechanism.value for mechanism in SaslMechanism if mechanism is not SaslMechanism.OAUTHBEARER
)
_RESOURCES = {
    kind.name.lower(): kind
    for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER)
}


def _resource(given: Mapping[str, str]) -> tuple[ResourceType, str]:
    if len(given) != 1 or next(iter(given)) not in _RESOURCES:
        raise ConfigError(f"give one resource, not {', '.join(given) or 'none'}; allowed: {', '.join(_RESOURCES)}")
    ((kind, name),) = given.items()
    if kind == "cluster" and name != CLUSTER_NAME:
        raise ConfigError(f"'{name}' is not the cluster; allowed: {CLUSTER_NAME}")
    return _RESOURCES[kind], name


def _operation(word: str) -> AclOperation:
    name = word.upper().replace("-", "_")
    allowed = [operation.name.lower() for operation in AclOperation if operation >= AclOperation.ALL]
    if name.lower() not in allowed:
        raise ConfigError(f"'{word}' is not an operation; allowed: {', '.join(allowed)}")
    return AclOperation[name]


@contextmanager
def secured_broker(*, protocol: str = "SASL_SSL", **given: object) -> Iterator[SecuredBroker]:
    """Run a broker with access control lists for the block, on a SASL_SSL, SASL_PLAINTEXT or SSL listener.

    `given` are options as for `running_broker`. On SSL, clients need a certificate. Raises ConfigError.
    """
    if protocol not in list(SecurityProtocol) or protocol == SecurityProtocol.PLAINTEXT:
        raise ConfigError(f"'{protocol}' is not a secured protocol; allowed: SASL_SSL, SASL_PLAINTEXT, SSL")
    with TemporaryDirectory(prefix="kafscale-testing-") as directory:
        authority = make_authority(Path(directory))
        settings = settings_of(
            {**_security(authority, SecurityProtocol(protocol)), **given}, SecurityProtocol(protocol)
        )
        with running(SecuredBroker(settings, authority=authority)) as broker:
            if broker.protocol.uses_sasl:
                broker.add_user(ADMIN)
            yield broker


def _security(authority: Authority, protocol: SecurityProtocol) -> dict[str, Any]:
    key_file = authority.directory / "secret.key"
    key_file.touch(mode=0o600)
    key_file.write_text(secrets.token_hex(KEY_BYTES))
    admin = ADMIN if protocol.uses_sasl else f"CN={ADMIN}"
    options: dict[str, Any] = {"secret_key_file": key_file, "authorizer": "acl", "super_user": f"User:{admin}"}
    if protocol.uses_sasl:
        options["sasl_mechanisms"] = PASSWORD_MECHANISMS
    if protocol.uses_tls:
        certificate = authority.issue("broker")
        options |= {"ssl_certificate_file": certificate.certificate_file, "ssl_key_file": certificate.key_file}
    if protocol is SecurityProtocol.SSL:
        options |= {"ssl_client_auth": "required", "ssl_client_ca_file": authority.ca_file}
    return options
