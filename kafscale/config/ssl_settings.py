"""The options of TLS, named as Kafka's `ssl.*` settings where it has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import attrs

from kafscale.config.option import Seconds, Size, option
from kafscale.config.units import GIB, KIB
from kafscale.config.values import Listener, SslClientAuth, SslVersion
from kafscale.errors import ConfigError


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
