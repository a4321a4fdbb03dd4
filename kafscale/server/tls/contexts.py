"""The broker's certificate, and TLS contexts made from it; both are replaced when the files change.

Connections keep their context. Session tickets are not issued: a client that resumes shows no certificate again.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs

from kafscale.config import SecurityProtocol, SslClientAuth, SslSettings, SslVersion
from kafscale.errors import StartupError
from kafscale.metrics import Metrics
from kafscale.security.certificates import ParsedCertificate

logger = logging.getLogger(__name__)

_VERSIONS = {SslVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2, SslVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3}
_VERIFY = {
    SslClientAuth.NONE: ssl.CERT_NONE,
    SslClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    SslClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}
_PASSWORD_MAX_BYTES = 1024


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Contexts:
    """`asking` asks clients for their certificate by the settings; `silent` does not."""

    certificate: ParsedCertificate
    asking: ssl.SSLContext
    silent: ssl.SSLContext


@attrs.define(eq=False, repr=False)
class Tls:
    settings: SslSettings
    current: Contexts
    paths: Sequence[Path]
    what: str = "the certificate of --ssl-certificate-file"

    @classmethod
    def open(cls, settings: SslSettings) -> Tls:
        files = (
            settings.ssl_certificate_file,
            settings.ssl_key_file,
            settings.ssl_key_password_file,
            settings.ssl_client_ca_file,
        )
        opened = cls(settings, _make_contexts(settings), [path for path in files if path is not None])
        if opened.current.certificate.not_after_seconds < time.time():
            logger.warning("%s, so clients refuse it; give one that is good", _expired(opened.current.certificate))
        return opened

    def load(self) -> None:
        """Read the files again. Raises StartupError, without effect."""
        made, now = _make_contexts(self.settings), time.time()
        if made.certificate.not_after_seconds < now <= self.current.certificate.not_after_seconds:
            raise StartupError(f"{_expired(made.certificate)}; give one that is good")
        self.current = made

    def context(self, protocol: SecurityProtocol) -> ssl.SSLContext:
        """Return the context for a new connection; clients with SASL are not asked for a certificate (KIP-684)."""
        return self.current.silent if protocol.uses_sasl else self.current.asking

    @property
    def admin_context(self) -> ssl.SSLContext:
        return self.current.silent

    def register(self, metrics: Metrics) -> None:
        help = "Expiry of the broker's certificate, in seconds since 1970."
        metrics.gauge(
            "kafscale_ssl_certificate_expiry_timestamp_seconds",
            help,
            lambda: self.current.certificate.not_after_seconds,
        )


def _expired(certificate: ParsedCertificate) -> str:
    moment = datetime.fromtimestamp(certificate.not_after_seconds, UTC)
    return f"--ssl-certificate-file: the certificate of '{certificate.subject}' expired on {moment:%Y-%m-%d %H:%M} UTC"


def _make_contexts(settings: SslSettings) -> Contexts:
    assert settings.ssl_certificate_file is not None  # it is checked when the settings are made
    path = settings.ssl_certificate_file
    text = read_text(path, "--ssl-certificate-file")
    try:
        certificate = ParsedCertificate.parse_pem(text)
    except ValueError as exc:
        raise StartupError(f"--ssl-certificate-file: '{path}' has no certificate: {exc}; give a PEM file") from exc
    return Contexts(
        certificate=certificate,
        asking=_make_context(settings, settings.ssl_client_auth),
        silent=_make_context(settings, SslClientAuth.NONE),
    )


def _make_context(settings: SslSettings, client_auth: SslClientAuth) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.ssl_min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    if settings.ssl_ciphers is not None:
        try:
            context.set_ciphers(settings.ssl_ciphers)
        except ssl.SSLError as exc:
            raise StartupError(
                f"--ssl-ciphers: '{settings.ssl_ciphers}' names no cipher; allowed: names that `openssl ciphers -v` "
                "shows, separated by colons"
            ) from exc
    _load_chain(context, settings)
    if client_auth is not SslClientAuth.NONE:
        _load_authorities(context, settings)
    context.verify_mode = _VERIFY[client_auth]
    return context


def _load_chain(context: ssl.SSLContext, settings: SslSettings) -> None:
    certificate_file, key_file = settings.ssl_certificate_file, settings.ssl_key_file
    assert certificate_file is not None
    shown = "--ssl-certificate-file" if key_file is None else "--ssl-key-file"
    path = certificate_file if key_file is None else key_file
    read_text(path, shown)
    try:
        context.load_cert_chain(certificate_file, key_file, password=lambda: _password(settings))
    except StartupError:
        raise
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            why = f"is not the key of the certificate in '{certificate_file}'; give the two that belong together"
        elif settings.ssl_key_password_file is not None:
            why = "can't be decrypted; give its password in --ssl-key-password-file, and a PEM file"
        else:
            why = "has no private key for it; give a PEM file of the certificate's key as --ssl-key-file"
        raise StartupError(f"{shown}: '{path}' {why}") from exc
    except OSError as exc:
        raise StartupError(f"{shown}: '{path}' can't be read ({exc.strerror or exc})") from exc


def _password(settings: SslSettings) -> str:
    if settings.ssl_key_password_file is None:
        raise StartupError("--ssl-key-file: the private key is encrypted; give its --ssl-key-password-file")
    return read_secret(settings.ssl_key_password_file, "--ssl-key-password-file", max_bytes=_PASSWORD_MAX_BYTES)


def _load_authorities(context: ssl.SSLContext, settings: SslSettings) -> None:
    path = settings.ssl_client_ca_file
    assert path is not None
    text = read_text(path, "--ssl-client-ca-file")
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as exc:
        raise StartupError(
            f"--ssl-client-ca-file: '{path}' has no certificates of authorities; give a PEM file of them"
        ) from exc


def read_text(path: Path, flag: str) -> str:
    """Read a file that an option names. Raises StartupError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise StartupError(f"{flag}: '{path}' can't be read ({exc.strerror or exc}); give a file that can") from exc
    except UnicodeDecodeError as exc:
        raise StartupError(f"{flag}: '{path}' is not UTF-8; give a file in PEM format") from exc


def read_secret(path: Path, flag: str, *, max_bytes: int) -> str:
    """Read a password or token from a file of one line. Raises StartupError."""
    secret = read_text(path, flag).rstrip("\r\n")
    if not secret or len(secret.encode()) > max_bytes or "\n" in secret:
        raise StartupError(f"{flag}: '{path}' holds no secret; give one of 1 to {max_bytes} bytes, in one line")
    return secret
