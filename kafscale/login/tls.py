"""TLS from the client's side, by the names of Kafka's client settings.

ssl.truststore.type=PEM                  with ssl.truststore.location, or ssl.truststore.certificates (Java)
ssl.keystore.type=PEM                    with ssl.keystore.location, or .certificate.chain and .key as text (Java)
ssl.ca.location, ssl.ca.pem              (librdkafka)
ssl.certificate.location, .pem           (librdkafka), with ssl.key.location, .pem
ssl.key.password                         of the private key
ssl.endpoint.identification.algorithm    https, or empty or none to take a certificate for any host
enable.ssl.certificate.verification      false to take any certificate (librdkafka)
ssl.enabled.protocols                    TLSv1.2, TLSv1.3
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from kafscale.errors import ConfigError

ENDPOINT_ALGORITHM = "ssl.endpoint.identification.algorithm"
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_PEM_BLOCK = re.compile(r"(-----BEGIN [^-]+-----)([^-]*)(-----END [^-]+-----)")
KNOWN = frozenset(
    {
        *(f"ssl.truststore.{name}" for name in ("type", "location", "certificates")),
        *(f"ssl.keystore.{name}" for name in ("type", "location", "certificate.chain", "key")),
        *(f"ssl.{kind}.{form}" for kind in ("ca", "certificate", "key") for form in ("location", "pem")),
        "ssl.key.password",
        ENDPOINT_ALGORITHM,
        "enable.ssl.certificate.verification",
        "ssl.enabled.protocols",
    }
)


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=_authorities(properties))
    algorithm = properties.get(ENDPOINT_ALGORITHM, "https").strip().lower()
    if algorithm not in ("https", "none", ""):
        raise ConfigError(f"{ENDPOINT_ALGORITHM}: '{algorithm}' is not known; allowed: https, none")
    context.check_hostname = algorithm == "https"
    if properties.get("enable.ssl.certificate.verification", "true").strip().lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    versions = [version.strip() for version in properties.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3").split(",")]
    if not versions or any(version not in _VERSIONS for version in versions):
        raise ConfigError(f"ssl.enabled.protocols: '{','.join(versions)}' is not known; allowed: TLSv1.2, TLSv1.3")
    context.minimum_version = min(_VERSIONS[version] for version in versions)
    context.maximum_version = max(_VERSIONS[version] for version in versions)
    _load_certificate(context, properties)
    return context


def _authorities(properties: Mapping[str, str]) -> str | None:
    found = _first(_text_of(properties, "ssl.ca"), _store(properties, "truststore", "certificates"))
    if found is None:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=found)
    except (ssl.SSLError, ValueError) as exc:
        name = "ssl.ca.location" if _text_of(properties, "ssl.ca") is not None else "ssl.truststore.location"
        raise ConfigError(f"{name}: has no certificates of authorities; allowed: PEM") from exc
    return found


def _load_certificate(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    chain = _first(_text_of(properties, "ssl.certificate"), _store(properties, "keystore", "certificate.chain"))
    if chain is None:
        return
    key = _first(_text_of(properties, "ssl.key"), _in_lines(properties.get("ssl.keystore.key")), "")
    password = properties.get("ssl.key.password")

    def give_password() -> str:
        if password is None:
            raise ConfigError("ssl.key.password: is missing, and the private key is encrypted; give its password")
        return password

    try:
        _load_pem(context, f"{chain}\n{key}\n", give_password)
    except ssl.SSLError as exc:
        raise ConfigError(
            "ssl.key.location: is not the private key of the certificate, or ssl.key.password is not its password; "
            "give PEM of the two that belong together, or one file of both as ssl.keystore.location"
        ) from exc


def _load_pem(context: ssl.SSLContext, pem: str, password: Callable[[], str]) -> None:
    """Load PEM text by a temporary file, as Python reads only files."""
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(pem)
        context.load_cert_chain(path, password=password)
    finally:
        os.unlink(path)


def _store(properties: Mapping[str, str], store: str, text: str) -> str | None:
    """Return a store of Java, which must be PEM, from a file or text."""
    if not _has_pem_store(properties, store, text):
        return None
    location = f"ssl.{store}.location"
    return _first(_in_lines(properties.get(f"ssl.{store}.{text}")), _read(properties.get(location), location))


def _has_pem_store(properties: Mapping[str, str], store: str, text: str) -> bool:
    """Tell whether a store of Java is given. Raises ConfigError unless it is PEM."""
    if f"ssl.{store}.location" not in properties and f"ssl.{store}.{text}" not in properties:
        return False
    kind = properties.get(f"ssl.{store}.type", "JKS").strip()
    if kind.upper() != "PEM":
        raise ConfigError(
            f"ssl.{store}.type: '{kind}' can't be read here; allowed: PEM, to which `openssl pkcs12 -nodes` turns a "
            "PKCS12 store (and `keytool -importkeystore -deststoretype PKCS12` a JKS store to that)"
        )
    return True


def _text_of(properties: Mapping[str, str], name: str) -> str | None:
    """Return librdkafka's text (.pem) or file (.location)."""
    return _first(
        _in_lines(properties.get(f"{name}.pem")), _read(properties.get(f"{name}.location"), f"{name}.location")
    )


def _in_lines(pem: str | None) -> str | None:
    """Restore the line ends of PEM that a file of settings, where a value is one line, has lost."""

    def rewrite(block: re.Match[str]) -> str:
        body = re.sub(r"\s+", "", block[2])
        return "\n".join([block[1], *(body[start : start + 64] for start in range(0, len(body), 64)), block[3], ""])

    return pem if pem is None or "\n" in pem.strip() else _PEM_BLOCK.sub(rewrite, pem)


def _first(*found: str | None) -> str | None:
    """Return the first text, also an empty one: an empty list of authorities trusts no one."""
    return next((value for value in found if value is not None), None)


def _read(location: str | None, name: str) -> str | None:
    if location is None:
        return None
    try:
        return Path(location).expanduser().read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{name}: '{location}' can't be read ({exc.strerror or exc}); allowed: a PEM file") from exc
    except RuntimeError as exc:  # a home directory that there is not
        raise ConfigError(f"{name}: '{location}' can't be read ({exc}); allowed: a PEM file") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{name}: '{location}' is not UTF-8; allowed: a PEM file") from exc
