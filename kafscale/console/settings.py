"""Settings of the console, as its command gives them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from kafscale.config import Address, SaslMechanism, SecurityProtocol, Settings
from kafscale.errors import ConfigError
from kafscale.login.sasl import ClientSasl
from kafscale.login.security import ClientSecurity, client_protocol
from kafscale.login.tls import tls_context

CREDENTIALS = ("sasl.username", "sasl.password", "sasl.jaas.config", "sasl.oauthbearer.")
MECHANISM = "sasl.mechanism"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Security:
    """Connection security without credentials: each user of the console logs in with their own."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    context: ssl.SSLContext | None = None
    mechanisms: Sequence[SaslMechanism] = ()

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> Security:
        """Read settings of a Kafka client. Raises ConfigError."""
        for name in properties:
            if name.startswith(CREDENTIALS):
                raise ConfigError(f"{name}: users of the console log in with their own credentials; remove it")
        protocol = client_protocol(properties)
        names = [name.strip() for name in properties.get(MECHANISM, "").split(",") if name.strip()]
        unknown = [name for name in names if name not in list(SaslMechanism)]
        if unknown:
            raise ConfigError(f"{MECHANISM}: '{unknown[0]}' is unknown; allowed: {', '.join(SaslMechanism)}")
        return cls(
            protocol=protocol,
            context=tls_context(properties) if protocol.uses_tls else None,
            mechanisms=[SaslMechanism(name) for name in names] or list(SaslMechanism),
        )

    @property
    def needs_login(self) -> bool:
        return self.protocol.uses_sasl

    def of(self, sasl: ClientSasl | None) -> ClientSecurity:
        """Return the security of a client with these credentials."""
        return ClientSecurity(protocol=self.protocol, context=self.context, sasl=sasl)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsoleSettings:
    """`admin` is the broker's admin server with its `admin_token`. `bucket` has the store options, None without one."""

    bootstrap: Sequence[Address]
    security: Security = attrs.field(factory=Security)
    allowed_hosts: frozenset[str] = frozenset()
    is_read_only: bool = False
    admin: Address | None = None
    admin_token: str | None = attrs.field(default=None, repr=False)
    registry: str | None = None
    bucket: Settings | None = None
    pipelines: Sequence[Path] = ()
