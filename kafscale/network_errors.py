"""Words for failures to connect, instead of the names that OpenSSL and resolvers use. Imports nothing of KafScale."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

# OpenSSL's reasons where the first bytes of the other side are not TLS: those of HTTP, or of a server that waits.
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"}
)
_NO_COMMON_VERSION: Final = frozenset(
    {"UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_SHARED_CIPHER"}
)
_WANTS_CERTIFICATE: Final = frozenset(
    {"TLSV13_ALERT_CERTIFICATE_REQUIRED", "PEER_DID_NOT_RETURN_A_CERTIFICATE", "SSLV3_ALERT_HANDSHAKE_FAILURE"}
)
SPEAKS_NO_TLS: Final = "it does not speak TLS"


def root_cause(exc: BaseException) -> BaseException:
    """Return the error of the operating system or TLS, which trio wraps and groups."""
    while exc.__cause__ is not None:
        exc = exc.__cause__
    return root_cause(exc.exceptions[0]) if isinstance(exc, BaseExceptionGroup) else exc


def why_unreachable(exc: BaseException) -> str:
    """Return why a connection or its TLS handshake failed, in words that follow a colon."""
    cause = root_cause(exc)
    if isinstance(cause, ssl.SSLError):
        return _why_no_tls(cause)
    if isinstance(cause, socket.gaierror):
        if cause.errno == socket.EAI_AGAIN:
            return f"its name can't be looked up just now ({cause.strerror})"
        return f"there is no host of that name ({cause.strerror})"
    if isinstance(cause, TimeoutError):
        return "it did not answer in time"
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    return str(cause) or type(cause).__name__


def _why_no_tls(exc: ssl.SSLError) -> str:
    reason = exc.reason or ""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not valid here: {exc.verify_message}"
    if reason in _NO_TLS:
        return SPEAKS_NO_TLS
    if isinstance(exc, ssl.SSLEOFError | ssl.SSLZeroReturnError) or reason == "UNEXPECTED_EOF_WHILE_READING":
        return "it closed the connection in the handshake, as a server without TLS does"
    if reason in _NO_COMMON_VERSION:
        return f"both sides have no version or cipher of TLS in common ({reason})"
    if reason in _WANTS_CERTIFICATE:
        return f"it wants a certificate of the client, or another one ({reason})"
    return reason.replace("_", " ").lower() or str(exc)
