"""The options of SASL: by what clients authenticate, and what the broker checks their passwords and tokens against.

They are named after Kafka's where Kafka has them. No secret is an option: the key file is named, not its content.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import ClassVar

import attrs

from kafscale.config.option import Milliseconds, Seconds, Size, option
from kafscale.config.units import KIB, MIB
from kafscale.config.values import SaslMechanism, has_host, split_url
from kafscale.errors import ConfigError

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
