"""Kafka's client settings by the names of librdkafka, which has no JAAS and calls PEM files otherwise than Java.

What librdkafka knows itself is left as it is, be it no setting of `kafscale.login.security`: OIDC, for one.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

from kafscale.errors import ConfigError
from kafscale.login.sasl import (
    CALLBACK_CLASS,
    JAAS,
    MECHANISM,
    MECHANISMS,
    PASSWORD,
    TOKEN_URL,
    USERNAME,
    ClientSasl,
    client_sasl,
)
from kafscale.login.security import client_protocol
from kafscale.login.steps import read_token
from kafscale.login.tls import ENDPOINT_ALGORITHM, has_pem_store, in_lines

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
    by_file = mechanism == "OAUTHBEARER" and str(settings.get(TOKEN_URL, "")).strip().startswith("file:")
    if not (JAAS in settings or by_file):
        return
    sasl = client_sasl(settings)
    for name in (JAAS, CALLBACK_CLASS):
        settings.pop(name, None)
    if sasl.token_file is not None:
        del settings[TOKEN_URL]
        settings[TOKEN_CALLBACK] = token_callback(sasl)
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


def token_callback(sasl: ClientSasl) -> Callable[[str], tuple[str, float]]:
    """Return what gives librdkafka the token that is in the file now, and when it expires."""

    def read(_: str) -> tuple[str, float]:
        token = read_token(sasl)
        return token, _expiry_seconds(token)

    return read


def _expiry_seconds(token: str) -> float:
    """Read when a token expires, which is not checked here. Raises ConfigError."""
    try:
        payload = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error) as exc:
        raise ConfigError(f"{TOKEN_URL}: there is no token in the file, or one that never expires") from exc
