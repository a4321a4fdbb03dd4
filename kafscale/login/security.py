"""Security of a client's connections, by the names of Kafka's client settings.

    security.protocol   PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    ssl.…               those of `kafscale.login.tls`
    sasl.…, https.…     those of `kafscale.login.sasl`

Other settings belong to other programs, and are ignored. An unknown one with such a prefix is an error.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import attrs

from kafscale.config import SecurityProtocol
from kafscale.errors import ConfigError
from kafscale.login import sasl, tls
from kafscale.login.sasl import ClientSasl, client_sasl
from kafscale.login.tls import tls_context

PROTOCOL = "security.protocol"
PREFIXES = ("security.", "ssl.", "enable.ssl.", "sasl.", "https.")
_KNOWN = frozenset({PROTOCOL, *tls.KNOWN, *sasl.KNOWN})


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ClientSecurity:
    """`context` is for TLS, and `sasl` for a login, if the protocol has them."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    context: ssl.SSLContext | None = None
    sasl: ClientSasl | None = None


PLAINTEXT = ClientSecurity()


def client_security(properties: Mapping[str, str]) -> ClientSecurity:
    """Read the settings, and the files that they name. Raises ConfigError."""
    protocol = client_protocol(properties)
    return ClientSecurity(
        protocol=protocol,
        context=tls_context(properties) if protocol.uses_tls else None,
        sasl=client_sasl(properties) if protocol.uses_sasl else None,
    )


def client_protocol(properties: Mapping[str, str]) -> SecurityProtocol:
    """Read the security protocol. Raises ConfigError, also for a setting of security that is unknown."""
    for name in properties:
        if name.startswith(PREFIXES) and name not in _KNOWN:
            raise ConfigError(f"{name}: is not known here; allowed: {', '.join(sorted(_KNOWN))}")
    word = properties.get(PROTOCOL, "PLAINTEXT").strip().upper()
    protocol = SecurityProtocol.__members__.get(word)
    if protocol is None:
        raise ConfigError(f"{PROTOCOL}: '{word}' is not known here; allowed: {', '.join(SecurityProtocol)}")
    return protocol
