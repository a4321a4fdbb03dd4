"""Certificates for tests with TLS, by the library cryptography.

They satisfy `ssl.VERIFY_X509_STRICT`: key ids (RFC 5280, 4.2.1.1 and 4.2.1.2), and key usage (4.2.1.3).
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

LOOPBACK = "127.0.0.1"
BEFORE = datetime.timedelta(hours=1)
DAY = datetime.timedelta(days=1)

CertificateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@attrs.frozen(kw_only=True)
class CertificateFiles:
    """PEM files of a certificate, with its authority's, and of its key."""

    certificate_file: Path
    key_file: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate_file, self.key_file)
        return context

    def client_context(self, ca_file: Path, *, shown: CertificateFiles | None = None) -> ssl.SSLContext:
        """Return a strict context for a client that trusts `ca_file` and shows the certificate `shown`."""
        context = ssl.create_default_context(cafile=ca_file)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        if shown is not None:
            context.load_cert_chain(shown.certificate_file, shown.key_file)
        return context


@attrs.frozen(kw_only=True)
class Authority:
    """A certificate authority, which writes its certificates into a directory; others trust `ca_file`."""

    directory: Path
    ca_file: Path
    _certificate: x509.Certificate
    _key: ec.EllipticCurvePrivateKey

    def issue(
        self,
        name: str,
        *,
        subject: x509.Name | None = None,
        hosts: Sequence[str] = ("localhost",),
        good_for: datetime.timedelta = DAY,
        password: bytes | None = None,
        key: CertificateKey | None = None,
    ) -> CertificateFiles:
        """Issue a certificate for 127.0.0.1 and `hosts`; `name` is its common name, unless a subject is given.

        Its files have this name, and replace earlier ones. A negative `good_for` makes it expired.
        """
        key = key or ec.generate_private_key(ec.SECP256R1())
        subject = common_name(name) if subject is None else subject
        builder = _builder(subject, key, good_for, issuer=self._certificate.subject, issuer_key=self._key)
        builder = builder.add_extension(_alternative_names(hosts), critical=not subject.rdns)  # RFC 5280, 4.2.1.6
        builder = builder.add_extension(_key_usage(), critical=True)
        certificate = builder.sign(self._key, hashes.SHA256())
        files = CertificateFiles(
            certificate_file=self.directory / f"{name}.pem", key_file=self.directory / f"{name}-key.pem"
        )
        files.certificate_file.write_bytes(_pem(certificate) + _pem(self._certificate))
        _write_key(files.key_file, key, password)
        return files


def make_authority(directory: Path, name: str = "ca") -> Authority:
    """Make an authority, valid for a day, with its certificate in the directory."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = common_name(f"{name} of tests")
    builder = _builder(subject, key, DAY, issuer=subject, issuer_key=key)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = builder.add_extension(_key_usage(signs_certificates=True), critical=True).sign(key, hashes.SHA256())
    ca_file = directory / f"{name}.pem"
    ca_file.write_bytes(_pem(certificate))
    return Authority(directory=directory, ca_file=ca_file, certificate=certificate, key=key)


def common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    key: CertificateKey,
    good_for: datetime.timedelta,
    *,
    issuer: x509.Name,
    issuer_key: CertificateKey,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE + min(good_for, datetime.timedelta()))
        .not_valid_after(now + good_for)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer_id, critical=False)
    )


def _alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([*map(x509.DNSName, hosts), x509.IPAddress(ipaddress.ip_address(LOOPBACK))])


def _key_usage(*, signs_certificates: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: CertificateKey, password: bytes | None) -> None:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
