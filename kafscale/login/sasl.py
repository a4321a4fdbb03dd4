"""SASL from the client's side: who it says it is, by the names of Kafka's client settings.

    sasl.mechanism                     SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER (librdkafka: sasl.mechanisms)
    sasl.username, sasl.password       (librdkafka)
    sasl.jaas.config                   …LoginModule required username="…" password="…";  (Java)
    sasl.oauthbearer.token.endpoint.url=file:///PATH   a file with the token, read at each login

So that a file of Java's settings can be used as it is, sasl.login.callback.handler.class may name Kafka's own
OAuthBearerLoginCallbackHandler, which does the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import attrs

from kafscale.config import SaslMechanism
from kafscale.errors import ConfigError

MECHANISM, MECHANISMS = "sasl.mechanism", "sasl.mechanisms"
USERNAME, PASSWORD, JAAS = "sasl.username", "sasl.password", "sasl.jaas.config"
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
CALLBACK_CLASS = "sasl.login.callback.handler.class"
KNOWN = frozenset({MECHANISM, MECHANISMS, USERNAME, PASSWORD, JAAS, TOKEN_URL, CALLBACK_CLASS})
MODULES = {"ScramLoginModule": "SCRAM-", "PlainLoginModule": "PLAIN", "OAuthBearerLoginModule": "OAUTHBEARER"}
OWN_CALLBACK_CLASS = "OAuthBearerLoginCallbackHandler"

_JAAS = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.DOTALL)
_JAAS_OPTION = re.compile(r'\s*([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))', re.DOTALL)


@attrs.frozen(kw_only=True)
class ClientSasl:
    """What a client logs in with; `token_file` is for OAUTHBEARER."""

    mechanism: SaslMechanism
    username: str = ""
    password: str = attrs.field(default="", repr=False)
    token_file: Path | None = None


def client_sasl(properties: Mapping[str, str]) -> ClientSasl:
    """Read the settings. Raises ConfigError."""
    word = properties.get(MECHANISM, properties.get(MECHANISMS, "")).strip()
    if word not in list(SaslMechanism):
        raise ConfigError(f"{MECHANISM}: '{word}' is not known; allowed: {', '.join(SaslMechanism)}")
    mechanism = SaslMechanism(word)
    options = _jaas_options(properties[JAAS], mechanism) if JAAS in properties else {}
    if mechanism is SaslMechanism.OAUTHBEARER:
        return ClientSasl(mechanism=mechanism, token_file=_token_file(properties))
    username = properties.get(USERNAME, options.get("username", ""))
    password = properties.get(PASSWORD, options.get("password", ""))
    if not username or not password:
        raise ConfigError(f"{USERNAME}: who logs in is missing; give {USERNAME} and {PASSWORD}, or {JAAS}")
    return ClientSasl(mechanism=mechanism, username=username, password=password)


def _token_file(properties: Mapping[str, str]) -> Path:
    handler = properties.get(CALLBACK_CLASS, OWN_CALLBACK_CLASS).strip().rpartition(".")[2]
    if handler != OWN_CALLBACK_CLASS:
        raise ConfigError(f"{CALLBACK_CLASS}: '{handler}' is not known; allowed: {OWN_CALLBACK_CLASS} of Kafka")
    text = properties.get(TOKEN_URL, "").strip()
    url = urlsplit(text)
    if url.scheme != "file" or url.netloc or len(url.path) < 2:
        raise ConfigError(f"{TOKEN_URL}: '{text}' is no file; allowed: file:///PATH of a file with the token")
    return Path(unquote(url.path))


def _jaas_options(text: str, mechanism: SaslMechanism) -> dict[str, str]:
    found = _JAAS.fullmatch(text)
    options: dict[str, str] = {}
    rest = found[2] if found is not None else "?"
    while rest.strip():
        option = _JAAS_OPTION.match(rest)
        if option is None:
            raise ConfigError(f'{JAAS}: is not as allowed: MODULE required username="NAME" password="PASSWORD";')
        quoted, plain = option[2], option[3]
        options[option[1]] = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        rest = rest[option.end() :]
    assert found is not None  # or the rest would have been wrong
    module = found[1].rpartition(".")[2]
    if module not in MODULES or not mechanism.startswith(MODULES[module]):
        allowed = next(name for name, begin in MODULES.items() if mechanism.startswith(begin))
        raise ConfigError(f"{JAAS}: the module '{module}' is not that of {mechanism}; allowed: {allowed}")
    return options
