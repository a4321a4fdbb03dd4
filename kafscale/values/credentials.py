"""Credentials of a schema registry.

They are given, in files, in a file of settings by the names of Confluent's clients, or in the environment of the
process that asks, so that no secret is in a program or a command line. In the file of settings, names may begin with
`schema.registry.`; then only those count:

    basic.auth.user.info   USER:PASSWORD, with basic.auth.credentials.source=USER_INFO, or without it
    bearer.auth.token      with bearer.auth.credentials.source=STATIC_TOKEN, or without it
    bearer.auth.credentials.source=OAUTHBEARER, and the issuer of tokens:
        bearer.auth.issuer.endpoint.url, bearer.auth.client.id, bearer.auth.client.secret, bearer.auth.scope
        bearer.auth.logical.cluster, bearer.auth.identity.pool.id, for Confluent Cloud
    ssl.…                  authorities and a certificate, as in `kafscale.login.tls`
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from kafscale.errors import ConfigError
from kafscale.login import tls
from kafscale.login.properties import read_properties
from kafscale.values.registry import BASIC_AUTH_VARIABLE, OAuthOptions, RegistryOptions

BEARER_TOKEN_VARIABLE = "KAFSCALE_SCHEMA_REGISTRY_BEARER_TOKEN"
PREFIX = "schema.registry."
USER_INFO, TOKEN = "basic.auth.user.info", "bearer.auth.token"
BASIC_SOURCE, BEARER_SOURCE = "basic.auth.credentials.source", "bearer.auth.credentials.source"
OAUTHBEARER = "OAUTHBEARER"
ISSUER_URL, CLIENT_ID, CLIENT_SECRET = (
    "bearer.auth.issuer.endpoint.url",
    "bearer.auth.client.id",
    "bearer.auth.client.secret",
)
SCOPE, CLUSTER, POOL = "bearer.auth.scope", "bearer.auth.logical.cluster", "bearer.auth.identity.pool.id"
_SOURCES = {BASIC_SOURCE: ("USER_INFO",), BEARER_SOURCE: ("STATIC_TOKEN", OAUTHBEARER)}
_PREFIXES = ("basic.auth.", "bearer.auth.", "ssl.")
_OAUTH = (ISSUER_URL, CLIENT_ID, CLIENT_SECRET, SCOPE, CLUSTER, POOL)
_KNOWN = frozenset({USER_INFO, TOKEN, *_SOURCES, *_OAUTH, *tls.KNOWN})


@attrs.frozen(kw_only=True)
class RegistryCredentials:
    """The credentials of a user; all may be missing. `config_file` is a file of settings."""

    basic_auth: str | None = attrs.field(default=None, repr=False)
    basic_auth_file: str | None = None
    bearer_token: str | None = attrs.field(default=None, repr=False)
    bearer_token_file: str | None = None
    config_file: str | None = None
    ca_file: str | None = None

    def options(self, urls: str, environment: Mapping[str, str] = os.environ) -> RegistryOptions:
        """Return the options of the registry. Without other credentials the environment counts. Raises ConfigError."""
        settings = {} if self.config_file is None else _settings_in(self.config_file)
        basic = _secret("basic auth", self.basic_auth, self.basic_auth_file)
        bearer = _secret("bearer token", self.bearer_token, self.bearer_token_file)
        oauth = None
        if basic is None and bearer is None:
            basic, bearer, oauth = settings.get(USER_INFO), settings.get(TOKEN), _oauth(self.config_file, settings)
        if basic is None and bearer is None and oauth is None:
            basic, bearer = environment.get(BASIC_AUTH_VARIABLE) or None, environment.get(BEARER_TOKEN_VARIABLE) or None
        return RegistryOptions(
            urls=RegistryOptions.parse_urls(urls),
            basic_auth=basic,
            bearer_token=bearer,
            oauth=oauth,
            ca_file=self.ca_file,
            tls=tuple(sorted((name, value) for name, value in settings.items() if name in tls.KNOWN)),
        )


def _settings_in(file: str) -> Mapping[str, str]:
    found = read_properties(Path(file.strip()))
    if any(name.startswith(PREFIX) for name in found):
        found = {name.removeprefix(PREFIX): value for name, value in found.items() if name.startswith(PREFIX)}
    for name, value in found.items():
        if name.startswith(_PREFIXES) and name not in _KNOWN:
            raise ConfigError(f"{file}: {name} is not known here; allowed: {', '.join(sorted(_KNOWN))}")
        if name in _SOURCES and value.strip() not in _SOURCES[name]:
            raise ConfigError(f"{file}: {name} is '{value}'; allowed: {', '.join(_SOURCES[name])}")
    return found


def _oauth(file: str | None, settings: Mapping[str, str]) -> OAuthOptions | None:
    if settings.get(BEARER_SOURCE, "").strip() != OAUTHBEARER:
        return None
    for name in (ISSUER_URL, CLIENT_ID, CLIENT_SECRET):
        if not settings.get(name):
            raise ConfigError(f"{file}: {name} is missing, which {BEARER_SOURCE}={OAUTHBEARER} needs")
    return OAuthOptions(
        url=settings[ISSUER_URL].strip(),
        client_id=settings[CLIENT_ID],
        client_secret=settings[CLIENT_SECRET],
        scope=settings.get(SCOPE),
        cluster=settings.get(CLUSTER),
        identity_pool=settings.get(POOL),
    )


def _secret(what: str, given: str | None, file: str | None) -> str | None:
    if file is None:
        return given
    if given is not None:
        raise ConfigError(f"give the schema registry's {what} either itself or by a file, not both")
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"the file of the schema registry's {what} can't be read: {exc}") from exc
