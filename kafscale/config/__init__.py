"""Settings and limits: what can be set, its default, its trade-off, and where a value came from.

    settings.py              Settings: every option of `kafscale serve`, by itself or in one of these
    ssl_settings.py          SslSettings: those of TLS
    sasl_settings.py         SaslSettings: those of SASL
    coordinator_settings.py  CoordinatorSettings: those of consumer groups
    limits.py                Limits: every named maximum
    option.py                how a field declares an option; the one cattrs converter
    values.py                listeners, store URLs, closed sets of words
    listeners.py             what must hold of listeners together, and how each is secured
    units.py                 sizes and durations
    sources.py               flag over environment over TOML file over default

Imports the standard library, attrs, cattrs and `kafscale.errors` only.
"""

from __future__ import annotations

from kafscale.config.coordinator_settings import CoordinatorSettings
from kafscale.config.limits import Limits
from kafscale.config.option import Option
from kafscale.config.sasl_settings import SaslSettings
from kafscale.config.settings import Settings, options
from kafscale.config.sources import (
    ADMIN_CA_VARIABLE,
    BOOTSTRAP_VARIABLE,
    COMMAND_CONFIG_VARIABLE,
    CONFIG_VARIABLE,
    SUPERVISOR_VARIABLE,
    USER_PASSWORD_VARIABLE,
    Loaded,
    load,
)
from kafscale.config.ssl_settings import SslSettings
from kafscale.config.units import GIB, KIB, MIB, format_duration, format_size, parse_duration, parse_size
from kafscale.config.values import (
    WILDCARD_HOSTS,
    Address,
    AuthorizerKind,
    BalanceBy,
    Durability,
    IpConnections,
    Listener,
    ListenerProtocol,
    LogFormat,
    LogLevel,
    ReplicationFactorPolicy,
    SaslMechanism,
    SecurityProtocol,
    SslClientAuth,
    SslVersion,
    StoreEncryption,
    StoreUrl,
    canonical_ip,
    has_host,
    is_endpoint,
    split_list,
    split_url,
)

__all__ = [
    "ADMIN_CA_VARIABLE",
    "BOOTSTRAP_VARIABLE",
    "COMMAND_CONFIG_VARIABLE",
    "CONFIG_VARIABLE",
    "GIB",
    "KIB",
    "MIB",
    "SUPERVISOR_VARIABLE",
    "USER_PASSWORD_VARIABLE",
    "WILDCARD_HOSTS",
    "Address",
    "AuthorizerKind",
    "BalanceBy",
    "CoordinatorSettings",
    "Durability",
    "IpConnections",
    "Limits",
    "Listener",
    "ListenerProtocol",
    "Loaded",
    "LogFormat",
    "LogLevel",
    "Option",
    "ReplicationFactorPolicy",
    "SaslMechanism",
    "SaslSettings",
    "SecurityProtocol",
    "Settings",
    "SslClientAuth",
    "SslSettings",
    "SslVersion",
    "StoreEncryption",
    "StoreUrl",
    "canonical_ip",
    "format_duration",
    "format_size",
    "has_host",
    "is_endpoint",
    "load",
    "options",
    "parse_duration",
    "parse_size",
    "split_list",
    "split_url",
]
