"""Settings and limits: what can be set, its default, its trade-off, and where a value came from.

    settings.py           Settings: every option of `kafscale serve`, by itself or in one of the groups below
    security_settings.py  SslSettings, SaslSettings, and how listeners are secured
    limits.py             Limits: every named maximum; CoordinatorSettings: those of consumer groups
    option.py             how a field declares an option; the one cattrs converter
    values.py             listeners, store URLs, closed sets of words
    units.py              sizes and durations
    sources.py            flag over environment over TOML file over default

Imports the standard library, attrs, cattrs and `kafscale.errors` only.
"""

from __future__ import annotations

from kafscale.config.limits import CoordinatorSettings, Limits
from kafscale.config.option import Option
from kafscale.config.security_settings import SaslSettings, SslSettings
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
