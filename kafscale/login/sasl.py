"""SASL from the client's side, by the names of Kafka's client settings.

    sasl.mechanism                     SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER (librdkafka: sasl.mechanisms)
    sasl.username, sasl.password       (librdkafka)
    sasl.jaas.config                   …LoginModule required username="…" password="…";  (Java)
    sasl.oauthbearer.token.endpoint.url=file:///PATH   a file with the token, read at each login
    sasl.oauthbearer.token.endpoint.url=https://…      an issuer, which is asked for tokens with
        sasl.oauthbearer.client.credentials.client.id, .client.secret    (librdkafka: sasl.oauthbearer.client.id, …)
        sasl.oauthbearer.scope
        sasl.oauthbearer.header.urlencode              true to quote id and secret
        https.ca.location, https.ca.pem                trusted authorities (librdkafka), instead of the system's

sasl.jaas.config may have clientId, clientSecret, scope and ssl.truststore.… (PEM) of an issuer, as before Kafka 4.1.
Java's classes that do the same may be named: OAuthBearerLoginCallbackHandler as sasl.login.callback.handler.class, and
ClientCredentialsJwtRetriever, DefaultJwtRetriever or FileJwtRetriever as sasl.oauthbearer.jwt.retriever.class; so may
librdkafka's oidc as sasl.oauthbearer.method.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import attrs

from kafscale.config import SaslMechanism, has_host, split_url
from kafscale.errors import ConfigError
from kafscale.login.tls import tls_context
from kafscale.login.tokens import TOKEN_URL, TokenEndpoint, TokenFile, TokenSource

MECHANISM, MECHANISMS = "sasl.mechanism", "sasl.mechanisms"
USERNAME, PASSWORD, JAAS = "sasl.username", "sasl.password", "sasl.jaas.config"
CALLBACK_CLASS = "sasl.login.callback.handler.class"
CLIENT_IDS = ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id")
CLIENT_SECRETS = ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret")
SCOPE, URL_ENCODED = "sasl.oauthbearer.scope", "sasl.oauthbearer.header.urlencode"
RETRIEVER_CLASS, METHOD = "sasl.oauthbearer.jwt.retriever.class", "sasl.oauthbearer.method"
HTTPS_CA, HTTPS_CA_TEXT = "https.ca.location", "https.ca.pem"
KNOWN = frozenset(
    {MECHANISM, MECHANISMS, USERNAME, PASSWORD, JAAS, TOKEN_URL, CALLBACK_CLASS, *CLIENT_IDS, *CLIENT_SECRETS}
    | {SCOPE, URL_ENCODED, RETRIEVER_CLASS, METHOD, HTTPS_CA, HTTPS_CA_TEXT}
)
MODULES = {"ScramLoginModule": "SCRAM-", "PlainLoginModule": "PLAIN", "OAuthBearerLoginModule": "OAUTHBEARER"}
OWN_CALLBACK_CLASS = "OAuthBearerLoginCallbackHandler"
RETRIEVERS = {
    "file": ("DefaultJwtRetriever", "FileJwtRetriever"),
    "http": ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever"),
}

_JAAS = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.DOTALL)
_JAAS_OPTION = re.compile(r'\s*([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))', re.DOTALL)


@attrs.frozen(kw_only=True)
class ClientSasl:
    """Credentials of a client; `tokens` is for OAUTHBEARER."""

    mechanism: SaslMechanism
    username: str = ""
    password: str = attrs.field(default="", repr=False)
    tokens: TokenSource | None = None


def client_sasl(properties: Mapping[str, str]) -> ClientSasl:
    """Read the settings. Raises ConfigError."""
    word = properties.get(MECHANISM, properties.get(MECHANISMS, "")).strip()
    if word not in list(SaslMechanism):
        raise ConfigError(f"{MECHANISM}: '{word}' is not known; allowed: {', '.join(SaslMechanism)}")
    mechanism = SaslMechanism(word)
    options = _jaas_options(properties[JAAS], mechanism) if JAAS in properties else {}
    if mechanism is SaslMechanism.OAUTHBEARER:
        return ClientSasl(mechanism=mechanism, tokens=_tokens(properties, options))
    username = properties.get(USERNAME, options.get("username", ""))
    password = properties.get(PASSWORD, options.get("password", ""))
    if not username or not password:
        raise ConfigError(f"{USERNAME}: who logs in is missing; give {USERNAME} and {PASSWORD}, or {JAAS}")
    return ClientSasl(mechanism=mechanism, username=username, password=password)


def _tokens(properties: Mapping[str, str], options: Mapping[str, str]) -> TokenSource:
    text = properties.get(TOKEN_URL, "").strip()
    url = split_url(text)
    is_file = url.scheme == "file" and not url.netloc and len(url.path) > 1
    if not is_file and not (url.scheme in ("http", "https") and has_host(url)):
        raise ConfigError(
            f"{TOKEN_URL}: '{text}' is neither a file nor an issuer; allowed: file:///PATH of a file with the token, "
            "and https://…"
        )
    _check_class(properties, CALLBACK_CLASS, (OWN_CALLBACK_CLASS,))
    _check_class(properties, RETRIEVER_CLASS, RETRIEVERS["file" if is_file else "http"])
    return TokenFile(Path(unquote(url.path))) if is_file else _token_endpoint(text, properties, options)


def _check_class(properties: Mapping[str, str], setting: str, allowed: Sequence[str]) -> None:
    """Raise ConfigError for a Java class with another behaviour."""
    name = properties.get(setting, allowed[0]).strip().rpartition(".")[2]
    if name not in allowed:
        raise ConfigError(f"{setting}: '{name}' is not known; allowed: {' and '.join(allowed)} of Kafka")


def _token_endpoint(url: str, properties: Mapping[str, str], options: Mapping[str, str]) -> TokenEndpoint:
    """Read an issuer's settings; JAAS options count where no setting is given. Raises ConfigError."""

    def value(names: Sequence[str], option: str) -> str | None:
        return next((properties[name] for name in names if name in properties), options.get(option))

    client_id, secret = value(CLIENT_IDS, "clientId"), value(CLIENT_SECRETS, "clientSecret")
    if not client_id or not secret:
        missing = CLIENT_SECRETS[0] if client_id else CLIENT_IDS[0]
        raise ConfigError(f"{missing}: is missing; give {CLIENT_IDS[0]} and {CLIENT_SECRETS[0]}")
    return TokenEndpoint(
        url=url,
        client_id=client_id,
        client_secret=secret,
        scope=value((SCOPE,), "scope"),
        quotes_credentials=properties.get(URL_ENCODED, "false").strip().lower() == "true",
        context=_endpoint_context(properties, options) if url.startswith("https") else None,
    )


def _endpoint_context(properties: Mapping[str, str], options: Mapping[str, str]) -> ssl.SSLContext:
    """Return the trusted authorities of an issuer, by default the system's. Raises ConfigError."""
    trusted = {"ssl.ca.location": properties.get(HTTPS_CA), "ssl.ca.pem": properties.get(HTTPS_CA_TEXT)}
    given = {name: value for name, value in trusted.items() if value is not None}
    given = given or {name: value for name, value in options.items() if name.startswith("ssl.")}
    try:
        return tls_context(given)
    except ConfigError as exc:
        raise ConfigError(f"{TOKEN_URL}: whom to trust there: {exc}") from exc


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
