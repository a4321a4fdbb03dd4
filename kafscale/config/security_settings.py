"""The options of TLS and SASL, and how listeners are secured. They are named after Kafka's where Kafka has them.

No secret is an option: the file of a key is named, not its content.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs

from kafscale.config.option import Milliseconds, Seconds, option
from kafscale.config.units import KIB
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
    """Return a listener's security protocol: the one it is named after in any case, or the one given for its name."""
    protocol = SecurityProtocol.__members__.get(name.upper())
    if protocol is not None:
        return protocol
    return next((mapped.protocol for mapped in given if mapped.name == name), SecurityProtocol.PLAINTEXT)


def check_listeners(
    listeners: Sequence[Listener], advertised: Sequence[Listener], protocols: Sequence[ListenerProtocol]
) -> None:
    """Raise ConfigError if the three options contradict each other."""
    if not listeners:
        raise ConfigError("--listen: '' is empty; allowed: at least one [NAME=]HOST:PORT")
    _check_once("--listen", listeners, "NAME=HOST:PORT")
    _check_once("--advertised-listener", advertised, "NAME=HOST:PORT")
    _check_once("--listener-security-protocol", protocols, "NAME=PROTOCOL")
    names = [listener.name for listener in listeners]
    for listener in advertised:
        _check_named("--advertised-listener", listener, names)
        if listener.is_wildcard or listener.port == 0:
            raise ConfigError(
                f"--advertised-listener: '{listener}' can't be connected to; allowed: NAME=HOST:PORT with a real host "
                "and port"
            )
    for given in protocols:
        _check_named("--listener-security-protocol", given, names)
        if protocol_of(given.name, protocols) is not given.protocol:
            raise ConfigError(
                f"--listener-security-protocol: '{given}' contradicts the listener's name; allowed: a name in --listen "
                "that is not a protocol"
            )


def _check_once(flag: str, given: Sequence[Listener | ListenerProtocol], form: str) -> None:
    for name, count in Counter(named.name for named in given).items():
        if count > 1:
            raise ConfigError(f"{flag}: '{name}' is given {count} times; allowed: each name once, as {form}")


def _check_named(flag: str, given: Listener | ListenerProtocol, names: Sequence[str]) -> None:
    if given.name not in names:
        raise ConfigError(f"{flag}: '{given}' has no listener; allowed: the names of --listen, {', '.join(names)}")


@attrs.frozen(kw_only=True)
class SslSettings:
    """Settings that all listeners with TLS share. Files are read at the start, and again when they change."""

    ssl_certificate_file: Path | None = option(
        None,
        "PEM file with the certificate of listeners with TLS, followed by its intermediate certificates.",
        why="Kafka: ssl.keystore.location with ssl.keystore.type=PEM.",
    )
    ssl_key_file: Path | None = option(
        None, "PEM file with the certificate's private key. Default: --ssl-certificate-file."
    )
    ssl_key_password_file: Path | None = option(
        None,
        "File with the password of an encrypted private key.",
        why="Kafka: ssl.key.password.",
    )
    ssl_client_ca_file: Path | None = option(
        None,
        "PEM file of the authorities whose client certificates are trusted.",
        why="Kafka: ssl.truststore.location with ssl.truststore.type=PEM. The system's authorities are never trusted "
        "for clients.",
    )
    ssl_client_auth: SslClientAuth = option(
        SslClientAuth.NONE,
        "Whether clients of SSL listeners need a certificate: required, requested (without one they are "
        "User:ANONYMOUS) or none.",
        why="Kafka: ssl.client.auth. As in Kafka, clients of SASL_SSL listeners authenticate by SASL instead.",
    )
    ssl_principal_mapping_rules: str = option(
        "DEFAULT",
        "Rules that map the subject of a client's certificate to its name: RULE:PATTERN/REPLACEMENT/[L|U] or DEFAULT "
        "(the whole subject), separated by commas; the first match counts.",
        why="Kafka: ssl.principal.mapping.rules. Patterns are RE2's, without lookaround and backreferences.",
    )
    ssl_min_version: SslVersion = option(
        SslVersion.TLS_1_2, "Oldest allowed version of TLS.", why="Kafka: ssl.enabled.protocols, the same."
    )
    ssl_ciphers: str | None = option(
        None,
        "Ciphers for TLSv1.2, as OpenSSL names them, separated by colons. Default: those with forward secrecy.",
        why="Kafka: ssl.cipher.suites. TLSv1.3 keeps its own.",
    )

    ssl_reload_interval_seconds: float = 10.0  # how often to look for changed files; SIGHUP reloads at once
    # Kafka: socket.receive.buffer.bytes. A client that has to wait batches its small records: librdkafka takes a fifth
    # less CPU. It bounds a connection over a distance: 256 KiB at a round trip of 10 ms are 25 MiB/s. 0: the kernel's.
    ssl_receive_buffer_bytes: int = 256 * KIB


def check_ssl(ssl: SslSettings, listeners: Sequence[Listener], admin_ssl: bool) -> None:
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
    """Settings of listeners with SASL. Raises ConfigError for contradictory options."""

    sasl_mechanisms: tuple[SaslMechanism, ...] = option(
        (SaslMechanism.SCRAM_SHA_512, SaslMechanism.SCRAM_SHA_256),
        "SASL mechanisms that clients may use; repeatable.",
        why="Kafka: sasl.enabled.mechanisms. PLAIN sends the password: use it with TLS (SASL_SSL) only.",
    )
    secret_key_file: Path | None = option(
        None,
        "File with the keys that encrypt passwords in the metadata, each 64 hexadecimal digits on its own line: the "
        "first one encrypts, the others only decrypt. Default: `secret.key` in --data-dir, created with the first "
        "user.",
        why="A start from the bucket alone needs this file too.",
    )
    connections_max_reauth_ms: Milliseconds = option(
        0,
        "How long a client stays authenticated before it must authenticate again (KIP-368); 0 for as long as it stays "
        "connected, or its token is valid.",
        why="Kafka: connections.max.reauth.ms, 0. A removed user is disconnected after this time.",
        least=0,
        most=_YEAR_MS,
    )
    connection_failed_authentication_delay_ms: Milliseconds = option(
        100,
        "How long the answer to a failed login is delayed.",
        why="Kafka: connection.failed.authentication.delay.ms, 100 ms. It slows down guessing of passwords.",
        least=0,
        most=10_000,
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = option(
        None,
        "URL of the keys that sign tokens (a JSON Web Key Set): https://…, or file:///PATH. OAUTHBEARER needs it.",
        why="Kafka: sasl.oauthbearer.jwks.endpoint.url. Plain http is allowed from this machine only.",
    )
    sasl_oauthbearer_expected_issuer: str | None = option(
        None,
        "Issuer (`iss`) that a token must have. Default: any issuer with keys at the endpoint.",
        why="Kafka: sasl.oauthbearer.expected.issuer.",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = option(
        (),
        "Audiences (`aud`) of which a token must have one; repeatable. Default: a token with an audience is refused.",
        why="Kafka: sasl.oauthbearer.expected.audience.",
    )
    sasl_oauthbearer_sub_claim_name: str = option(
        "sub",
        "Claim of a token that names the user.",
        why="Kafka: sasl.oauthbearer.sub.claim.name.",
    )
    sasl_oauthbearer_required_scopes: tuple[str, ...] = option(
        (),
        "Scope that a token must have; repeatable, and all are needed.",
        why="Kafka: unsecuredValidatorRequiredScope, for tests only.",
        name="sasl-oauthbearer-required-scope",
    )
    sasl_oauthbearer_clock_skew_seconds: Seconds = option(
        30.0,
        "How far the clocks of this broker and of the issuer of tokens may differ.",
        why="Kafka: sasl.oauthbearer.clock.skew.seconds, 30.",
        least=0,
        most=600,
    )

    sasl_authentication_timeout_seconds: float = 30.0  # then a client that has not logged in is disconnected
    sasl_server_max_receive_bytes: int = 512 * KIB  # largest request before login; Kafka: sasl.server.max.receive.size
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = 3_600_000  # Kafka's default; an unknown key is read at once
    sasl_oauthbearer_scope_claim_name: str = "scope"  # RFC 8693's name

    def __attrs_post_init__(self) -> None:
        if not self.sasl_mechanisms:
            raise ConfigError(f"--sasl-mechanisms: '' is empty; allowed: {', '.join(SaslMechanism)}")
        url = self.sasl_oauthbearer_jwks_endpoint_url
        if url is not None:
            _check_jwks_url(url)
        elif SaslMechanism.OAUTHBEARER in self.sasl_mechanisms:
            raise ConfigError(
                "--sasl-mechanisms: 'OAUTHBEARER' needs --sasl-oauthbearer-jwks-endpoint-url; give the URL "
                "of the keys that sign tokens"
            )


def _check_jwks_url(text: str) -> None:
    """Raise ConfigError for a URL without TLS to another machine, or with a password in it."""
    url = split_url(text)
    if url.username or url.password:
        raise ConfigError(
            "--sasl-oauthbearer-jwks-endpoint-url: the URL has credentials in it; allowed: a URL without them"
        )
    is_file = url.scheme == "file" and not url.netloc and len(url.path) > 1
    is_safe = has_host(url) and (url.scheme == "https" or (url.scheme == "http" and _is_loopback(url.hostname)))
    if not (is_file or is_safe):
        raise ConfigError(
            f"--sasl-oauthbearer-jwks-endpoint-url: '{text}' is not a safe source of keys; allowed: https://HOST/PATH, "
            "file:///PATH, or http://127.0.0.1:PORT/PATH"
        )


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
