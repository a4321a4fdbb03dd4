"""Certificates of `kafscale.testing` hold where TLS verifies strictly, as it does by default from Python 3.13 on."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from kafscale.testing.certificates import CertificateFiles, make_authority
from tests.devtools.processes.tls import verify_strictly


def mutual_tls(
    server: CertificateFiles, client: CertificateFiles, ca_file: Path
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server_context = server.server_context()
    server_context.verify_mode = ssl.CERT_REQUIRED
    server_context.load_verify_locations(ca_file)
    return client.client_context(ca_file, shown=client), server_context


@pytest.mark.parametrize("subject", [None, x509.Name([])], ids=["named", "subject-empty"])
@pytest.mark.parametrize("key_size", [None, 2048], ids=["ec", "rsa"])
def test_issued_certificates_are_valid_where_verified_strictly(
    tmp_path: Path, subject: x509.Name | None, key_size: int | None
) -> None:
    authority = make_authority(tmp_path)
    key = None if key_size is None else rsa.generate_private_key(65537, key_size)
    server = authority.issue("server", subject=subject, key=key)
    client = authority.issue("client", subject=subject)
    verify_strictly(*mutual_tls(server, client, authority.ca_file))


def test_certificates_of_others_are_refused(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    stranger = make_authority(tmp_path, "stranger").issue("server")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed: self-signed"):
        verify_strictly(*mutual_tls(stranger, authority.issue("client"), authority.ca_file))


def test_clients_of_the_test_certificates_verify_strictly_on_every_python(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    context = authority.issue("server").client_context(authority.ca_file)
    assert context.verify_flags & ssl.VERIFY_X509_STRICT
