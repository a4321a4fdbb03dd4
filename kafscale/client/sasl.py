"""SASL from the client's side: who it says it is, by the names of Kafka's client settings.

    sasl.mechanism                     SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER (librdkafka: sasl.mechanisms)
    sasl.username, sasl.password       (librdkafka)
    sasl.jaas.config                   …LoginModule required username="…" password="…";  (Java)
    sasl.oauthbearer.token.endpoint.url=file:///PATH   a file with the token, read at each login

A session that the broker ends after a while (KIP-368) is not renewed: before its end the client connects anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import attrs
import trio

from kafscale.client.failures import check
from kafscale.config import SaslMechanism
from kafscale.errors import ConfigError, KafkaError
from kafscale.wire import codec
from kafscale.wire.error_codes import SASL_AUTHENTICATION_FAILED
from kafscale.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kafscale.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from kafscale.client.connection import Connection

MECHANISM, MECHANISMS = "sasl.mechanism", "sasl.mechanisms"
USERNAME, PASSWORD, JAAS = "sasl.username", "sasl.password", "sasl.jaas.config"
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
KNOWN = frozenset({MECHANISM, MECHANISMS, USERNAME, PASSWORD, JAAS, TOKEN_URL})
HANDSHAKE_VERSION = 1
# What a broker may ask for: at 1,000,000, a second. Kafka's allow 16,384.
ITERATIONS_MOST = 1_000_000

_JAAS = re.compile(r"\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.DOTALL)
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
    if mechanism is SaslMechanism.OAUTHBEARER:
        return ClientSasl(mechanism=mechanism, token_file=_token_file(properties.get(TOKEN_URL, "")))
    options = _jaas_options(properties[JAAS]) if JAAS in properties else {}
    username = properties.get(USERNAME, options.get("username", ""))
    password = properties.get(PASSWORD, options.get("password", ""))
    if not username or not password:
        raise ConfigError(f"{USERNAME}: who logs in is missing; give {USERNAME} and {PASSWORD}, or {JAAS}")
    return ClientSasl(mechanism=mechanism, username=username, password=password)


def _token_file(text: str) -> Path:
    url = urlsplit(text)
    if url.scheme != "file" or url.netloc or len(url.path) < 2:
        raise ConfigError(f"{TOKEN_URL}: '{text}' is no file; allowed: file:///PATH of a file with the token")
    return Path(unquote(url.path))


def _jaas_options(text: str) -> dict[str, str]:
    found = _JAAS.fullmatch(text)
    options: dict[str, str] = {}
    rest = found[1] if found is not None else "?"
    while rest.strip():
        option = _JAAS_OPTION.match(rest)
        if option is None:
            raise ConfigError(f'{JAAS}: is not as allowed: MODULE required username="NAME" password="PASSWORD";')
        quoted, plain = option[2], option[3]
        options[option[1]] = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        rest = rest[option.end() :]
    return options


async def authenticate(connection: Connection, sasl: ClientSasl) -> float | None:
    """Log in; the seconds until the session ends, or None if it does not. Raises BrokerUnavailable, KafkaError."""
    about = f"login as {sasl.username or 'the owner of a token'} by {sasl.mechanism} at {connection.address}"
    call = connection.call(SaslHandshakeRequest, SaslHandshakeResponse, version=HANDSHAKE_VERSION)
    request = codec.encode(SaslHandshakeRequest(mechanism=sasl.mechanism.value), HANDSHAKE_VERSION)
    answer = await (await connection.send_encoded(call, request)).wait()
    offered = f"the broker has {', '.join(answer.mechanisms)}" if answer.mechanisms else None
    check(answer.error_code, about, offered)
    if sasl.mechanism is SaslMechanism.PLAIN:
        final = await _send(connection, f"\0{sasl.username}\0{sasl.password}".encode(), about)
    elif sasl.mechanism is SaslMechanism.OAUTHBEARER:
        final = await _send_token(connection, sasl, about)
    else:
        final = await _scram(connection, sasl, about)
    return final.session_lifetime_ms / 1000 if final.session_lifetime_ms > 0 else None


async def _send(connection: Connection, data: bytes, about: str) -> SaslAuthenticateResponse:
    answer = await connection.request(SaslAuthenticateRequest(auth_bytes=data), SaslAuthenticateResponse)
    check(answer.error_code, about, answer.error_message)
    return answer


async def _send_token(connection: Connection, sasl: ClientSasl, about: str) -> SaslAuthenticateResponse:
    assert sasl.token_file is not None
    try:
        token = (await trio.Path(sasl.token_file).read_text(encoding="ascii")).strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{TOKEN_URL}: '{sasl.token_file}' can't be read: {exc}") from exc
    answer = await _send(connection, f"n,,\x01auth=Bearer {token}\x01\x01".encode(), about)
    if answer.auth_bytes:  # it says what is wrong, and fails when it is told that this was heard (RFC 7628)
        await _send(connection, b"\x01", about)
        raise KafkaError(SASL_AUTHENTICATION_FAILED, f"{about}: the token is refused")
    return answer


async def _scram(connection: Connection, sasl: ClientSasl, about: str) -> SaslAuthenticateResponse:
    from scramp import ScramClient, ScramException

    try:
        client = ScramClient([sasl.mechanism.value], sasl.username, sasl.password)
        first = await _send(connection, client.get_client_first().encode(), about)
        client.set_server_first(bytes(first.auth_bytes).decode())
        if int(client.iterations) > ITERATIONS_MOST:
            raise ScramException(f"it asks for {client.iterations} iterations")
        message = await trio.to_thread.run_sync(client.get_client_final)
        final = await _send(connection, message.encode(), about)
        client.set_server_final(bytes(final.auth_bytes).decode())
    except (ScramException, UnicodeDecodeError) as exc:
        raise KafkaError(SASL_AUTHENTICATION_FAILED, f"{about}: the broker does not do as SCRAM has it: {exc}") from exc
    return final
