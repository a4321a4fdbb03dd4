"""The options of TLS and SASL, and how listeners are secured. They are named after Kafka's where Kafka has them.

No secret is an option: the file of a key is named, not its content.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import attrs

from kafscale.config.option import Milliseconds, Seconds, Size, option
from kafscale.config.units import GIB, KIB, MIB
from kafscale.config.values import (
    Listener,
    ListenerProtocol,
    SaslMechanism,
    SecurityProtocol,
    SslClientAuth,
    SslVersion,
    has_host,
    split_url,
)
from kafscale.errors import ConfigError


def protocol_of(name: str, given: Sequence[ListenerProtocol]) -> SecurityProtocol:
    """Return how the listener of that name is secured: a name that is a protocol is meant, in whatever case."""
    protocol = SecurityProtocol.__members__.get(name.upper())
    if protocol is not None:
        return protocol
    return next((each.protocol for each in given if each.name == name), SecurityProtocol.PLAINTEXT)


def check_listeners(
    listeners: Sequence[Listener], advertised: Sequence[Listener], protocols: Sequence[ListenerProtocol]
) -> None:
    """Raise ConfigError if the three options do not fit together."""
    if not listeners:
        raise ConfigError("--listen: '' is empty; allowed: at least one [NAME=]HOST:PORT")
    _check_once("--listen", listeners, "NAME=HOST:PORT")
    _check_once("--advertised-listener", advertised, "NAME=HOST:PORT")
    _check_once("--listener-security-protocol", protocols, "NAME=PROTOCOL")
    names = [listener.name for listener in listeners]
    for each in advertised:
        _check_named("--advertised-listener", each, names)
        if each.is_wildcard or each.port == 0:
            raise ConfigError(f"--advertised-listener: '{each}' is nothing to connect to; allowed: a host and a port")
    for given in protocols:
        _check_named("--listener-security-protocol", given, names)
        if protocol_of(given.name, protocols) is not given.protocol:
            raise ConfigError(
                f"--listener-security-protocol: '{given}' has a protocol's name for another one; allowed: a name in "
                "--listen that is no protocol"
            )


def _check_once(flag: str, given: Sequence[Listener | ListenerProtocol], form: str) -> None:
    for name, count in Counter(each.name for each in given).items():
        if count > 1:
            raise ConfigError(f"{flag}: '{name}' is given {count} times; allowed: each name once, as {form}")


def _check_named(flag: str, given: Listener | ListenerProtocol, names: Sequence[str]) -> None:
    if given.name not in names:
        raise ConfigError(f"{flag}: '{given}' has no listener; allowed: the names of --listen, {', '.join(names)}")


@attrs.frozen(kw_only=True)
class SslSettings:
    """What the listeners with TLS have in common. The files are read at the start, and again when they have changed."""

    TITLE: ClassVar[str] = "TLS"  # in the reference

    ssl_certificate_file: Path | None = option(
        None,
        "PEM file of the certificate of listeners with TLS, followed by those of the authorities between it and the "
        "one that clients trust.",
        why="Kafka: ssl.keystore.location with ssl.keystore.type=PEM.",
    )
    ssl_key_file: Path | None = option(
        None, "PEM file of the certificate's private key. Default: it is in --ssl-certificate-file."
    )
    ssl_key_password_file: Path | None = option(
        None,
        "File with the password of an encrypted private key.",
        why="Kafka: ssl.key.password.",
    )
    ssl_client_ca_file: Path | None = option(
        None,
        "PEM file of the authorities whose client certificates are trusted.",
        why="Kafka: ssl.truststore.location with ssl.truststore.type=PEM. The system's authorities never are: they "
        "vouch for anybody.",
    )
    ssl_client_auth: SslClientAuth = option(
        SslClientAuth.NONE,
        "Whether clients of SSL listeners show a certificate: required, requested (those that show none are "
        "User:ANONYMOUS) or none.",
        why="Kafka: ssl.client.auth. As there, clients of SASL_SSL listeners are not asked: they authenticate by SASL.",
    )
    ssl_principal_mapping_rules: str = option(
        "DEFAULT",
        "How the subject of a client's certificate becomes its name: RULE:PATTERN/REPLACEMENT/[L|U] or DEFAULT (the "
        "whole subject), separated by commas; the first that matches counts.",
        why="Kafka: ssl.principal.mapping.rules. Patterns are RE2's, whose time is linear: without lookaround and "
        "references to groups in the pattern itself.",
    )
    ssl_min_version: SslVersion = option(
        SslVersion.TLS_1_2, "Oldest version of TLS: TLSv1.2 or TLSv1.3.", why="Kafka: ssl.enabled.protocols, the same."
    )
    ssl_ciphers: str | None = option(
        None,
        "Ciphers for TLSv1.2, as OpenSSL names them, separated by colons. Default: those with forward secrecy.",
        why="Kafka: ssl.cipher.suites. Those of TLSv1.3 are all sound, and stay.",
    )
    ssl_reload_interval_seconds: Seconds = option(
        10.0,
        "How often to look whether the files of TLS have changed; SIGHUP has them read again at once. New connections "
        "get what is new; what can't be used is left, with an error in the log.",
        least=0.01,
    )
    ssl_receive_buffer_bytes: Size = option(
        256 * KIB,
        "How much of what a client sends the kernel takes ahead of the broker, for each connection with TLS; 0 leaves "
        "it to the kernel.",
        why="Kafka: socket.receive.buffer.bytes, 102400, of all listeners. A client that has to wait puts its small "
        "records together: librdkafka takes a fifth less CPU. It bounds what one connection sends over a distance: "
        "256KiB at a round trip of 10 ms are 25 MiB/s.",
        least=0,
        most=GIB,
    )


def check_ssl(ssl: SslSettings, listeners: Sequence[Listener], admin_ssl: bool) -> None:
    """Raise ConfigError if these listeners, which are those with TLS, or the admin server can't have it."""
    if ssl.ssl_certificate_file is None:
        needs = f"--listen: '{listeners[0]}'" if listeners else "--admin-ssl: TLS" if admin_ssl else None
        if needs is not None:
            raise ConfigError(f"{needs} needs a certificate; give --ssl-certificate-file and --ssl-key-file")
        if ssl.ssl_key_file is not None:
            raise ConfigError(f"--ssl-key-file: '{ssl.ssl_key_file}' has no certificate; give --ssl-certificate-file")
    if ssl.ssl_client_auth is not SslClientAuth.NONE and ssl.ssl_client_ca_file is None:
        raise ConfigError(
            f"--ssl-client-auth: '{ssl.ssl_client_auth}' needs authorities to trust; give --ssl-client-ca-file"
        )


_YEAR_MS = 365 * 86_400_000


@attrs.frozen(kw_only=True)
class SaslSettings:
    """How clients of listeners with SASL authenticate. Raises ConfigError when two options together can't be."""

    TITLE: ClassVar[str] = "SASL"  # in the reference

    sasl_mechanisms: tuple[SaslMechanism, ...] = option(
        (SaslMechanism.SCRAM_SHA_512, SaslMechanism.SCRAM_SHA_256),
        "How clients of listeners with SASL may authenticate; repeatable.",
        why="Kafka: sasl.enabled.mechanisms. PLAIN sends the password: only with TLS (SASL_SSL) is it safe.",
    )
    secret_key_file: Path | None = option(
        None,
        "File with the keys that encrypt what the metadata has of passwords, each 64 hexadecimal digits on a line of "
        "its own: the first one encrypts, the others only decrypt. Default: `secret.key` in --data-dir, made when the "
        "first user is added.",
        why="The metadata is in the bucket, too. Who starts from the bucket alone needs this file beside it.",
    )
    connections_max_reauth_ms: Milliseconds = option(
        0,
        "How long a client may go on before it has to authenticate anew (KIP-368); 0 for as long as it stays "
        "connected, or as its token is valid.",
        why="Kafka: connections.max.reauth.ms, 0. A user who was removed is out when this has passed.",
        least=0,
        most=_YEAR_MS,
    )
    connection_failed_authentication_delay_ms: Milliseconds = option(
        100,
        "How long a client waits for the answer that it has not authenticated.",
        why="Kafka: connection.failed.authentication.delay.ms, 100 ms. It slows down who guesses passwords.",
        least=0,
        most=10_000,
    )
    sasl_authentication_timeout_seconds: Seconds = option(
        30.0,
        "A client that has not authenticated after this long is disconnected.",
        why="Kafka has no such limit but connections.max.idle.ms, 10 minutes.",
        least=0.1,
    )
    sasl_server_max_receive_bytes: Size = option(
        512 * KIB,
        "Largest request of a client that has not authenticated.",
        why="Kafka: sasl.server.max.receive.size, 524288.",
        name="sasl-server-max-receive-size",
        least=4 * KIB,
        most=16 * MIB,
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = option(
        None,
        "Where the keys are that sign tokens (a JSON Web Key Set): https://…, or file:///PATH. OAUTHBEARER needs it.",
        why="Kafka: sasl.oauthbearer.jwks.endpoint.url. Plain http is allowed from this machine only.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Milliseconds = option(
        3_600_000,
        "How often the keys are read again; also when a token names one that is not known.",
        why="Kafka: sasl.oauthbearer.jwks.endpoint.refresh.ms, 1 hour.",
        least=100,
        most=_YEAR_MS,
    )
    sasl_oauthbearer_expected_issuer: str | None = option(
        None,
        "Issuer (`iss`) that a token must have. Default: any whose keys are at the endpoint.",
        why="Kafka: sasl.oauthbearer.expected.issuer.",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = option(
        (),
        "Audiences (`aud`) of which a token must have one; repeatable. Default: a token that names an audience is "
        "refused.",
        why="Kafka: sasl.oauthbearer.expected.audience.",
    )
    sasl_oauthbearer_sub_claim_name: str = option(
        "sub",
        "Claim of a token that names the user.",
        why="Kafka: sasl.oauthbearer.sub.claim.name.",
    )
    sasl_oauthbearer_scope_claim_name: str = option(
        "scope",
        "Claim of a token that has its scopes: a list, or a text with spaces between them.",
        why="Kafka: sasl.oauthbearer.scope.claim.name.",
    )
    sasl_oauthbearer_required_scopes: tuple[str, ...] = option(
        (),
        "Scopes that a token must have, each of them; repeatable.",
        why="Kafka: unsecuredValidatorRequiredScope, for tests only.",
        name="sasl-oauthbearer-required-scope",
    )
    sasl_oauthbearer_clock_skew_seconds: Seconds = option(
        30.0,
        "How far the clocks of this broker and of who signs tokens may differ.",
        why="Kafka: sasl.oauthbearer.clock.skew.seconds, 30.",
        least=0,
        most=600,
    )

    def __attrs_post_init__(self) -> None:
        if not self.sasl_mechanisms:
            raise ConfigError(f"--sasl-mechanisms: '' is empty; allowed: {', '.join(SaslMechanism)}")
        url = self.sasl_oauthbearer_jwks_endpoint_url
        if url is not None:
            _check_jwks_url(url)
        elif SaslMechanism.OAUTHBEARER in self.sasl_mechanisms:
            raise ConfigError(
                "--sasl-mechanisms: 'OAUTHBEARER' needs the keys that sign tokens; allowed: with "
                "--sasl-oauthbearer-jwks-endpoint-url"
            )


def _check_jwks_url(text: str) -> None:
    """Raise ConfigError for an address whose keys anybody on the way could exchange, or that has a password in it."""
    url = split_url(text)
    if url.username or url.password:
        raise ConfigError("--sasl-oauthbearer-jwks-endpoint-url: has credentials in it; allowed: an address without")
    is_file = url.scheme == "file" and not url.netloc and len(url.path) > 1
    is_safe = has_host(url) and (url.scheme == "https" or (url.scheme == "http" and _is_loopback(url.hostname)))
    if not (is_file or is_safe):
        raise ConfigError(
            f"--sasl-oauthbearer-jwks-endpoint-url: '{text}' is not safe to get keys from; allowed: https://HOST/PATH, "
            "file:///PATH, or http://127.0.0.1:PORT/PATH"
        )


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
