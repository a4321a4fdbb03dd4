"""Kafka's client settings by the names of librdkafka, which has no JAAS and calls PEM files otherwise than Java.

What librdkafka knows itself is left as it is, be it no setting of `kafscale.login.security`: OIDC, for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafscale.errors import ConfigError
from kafscale.login.sasl import JAAS, MECHANISM, MECHANISMS, METHOD, PASSWORD, TOKEN_SETTINGS, USERNAME, client_sasl
from kafscale.login.security import client_protocol
from kafscale.login.tls import ENDPOINT_ALGORITHM, has_pem_store, in_lines
from kafscale.login.tokens import TOKEN_URL, TokenSource

TOKEN_CALLBACK = "oauth_cb"  # of confluent-kafka
_STORES = {  # Java's store: its text, and the kinds of librdkafka's settings that it stands for
    "truststore": ("certificates", ("ca",)),
    "keystore": ("certificate.chain", ("certificate", "key")),
}


def librdkafka_settings(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return settings for a client of confluent-kafka. Raises ConfigError."""
    settings: dict[str, Any] = dict(properties)
    if client_protocol(properties).uses_sasl:
        _replace_login(settings)
    for store, (text, kinds) in _STORES.items():
        if settings.get(f"ssl.{store}.type", "").strip().upper() == "PEM" or f"ssl.{store}.{text}" in settings:
            _replace_store(settings, store, text, kinds)
    if settings.get(ENDPOINT_ALGORITHM, "https").strip() == "":
        settings[ENDPOINT_ALGORITHM] = "none"
    return settings


def _replace_login(settings: dict[str, Any]) -> None:
    mechanism = str(settings.get(MECHANISM, settings.get(MECHANISMS, ""))).strip()
    by_itself = str(settings.get(METHOD, "")).strip().lower() == "oidc"
    if not (JAAS in settings or (mechanism == "OAUTHBEARER" and TOKEN_URL in settings and not by_itself)):
        return
    sasl = client_sasl(settings)
    for name in (JAAS, *TOKEN_SETTINGS):
        settings.pop(name, None)
    if sasl.tokens is not None:
        settings[TOKEN_CALLBACK] = token_callback(sasl.tokens)
    else:
        settings |= {USERNAME: sasl.username, PASSWORD: sasl.password}


def _replace_store(settings: dict[str, Any], store: str, text: str, kinds: tuple[str, ...]) -> None:
    """A PEM file of Java's has the key beside the certificates, and librdkafka takes each from a file of both."""
    has_pem_store(settings, store, text)
    location = settings.pop(f"ssl.{store}.location", None)
    texts = {"key": settings.pop(f"ssl.{store}.key", None), kinds[0]: settings.pop(f"ssl.{store}.{text}", None)}
    settings.pop(f"ssl.{store}.type", None)
    for kind in kinds:
        if texts[kind] is not None:
            settings[f"ssl.{kind}.pem"] = in_lines(texts[kind])
        elif location is not None:
            settings[f"ssl.{kind}.location"] = location


def token_callback(tokens: TokenSource) -> Callable[[str], tuple[str, float]]:
    """Return what gives librdkafka the token that there is now, and when it expires."""

    def give(_: str) -> tuple[str, float]:
        token = tokens.get()
        if token.expires_at is None:
            raise ConfigError(f"{TOKEN_URL}: what is there is no token, or one that never expires")
        return token.text, token.expires_at

    return give
