"""Subjects of certificates are written as Java writes them; the expectations are what Java 17 printed."""

from __future__ import annotations

import contextlib
import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.name import _ASN1Type as Type
from cryptography.x509.oid import NameOID

from kafscale.security.certificates import ParsedCertificate
from kafscale.testing.certificates import Authority, make_authority

A = x509.NameAttribute
CN = NameOID.COMMON_NAME
SUBJECTS = [
    (
        x509.Name(
            [
                A(NameOID.COUNTRY_NAME, "US"),
                A(NameOID.STATE_OR_PROVINCE_NAME, "MD"),
                A(NameOID.LOCALITY_NAME, "Fulton"),
                A(NameOID.ORGANIZATION_NAME, "mycp"),
                A(NameOID.ORGANIZATIONAL_UNIT_NAME, "SME"),
                A(CN, "Duke"),
            ]
        ),
        "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US",
    ),
    (x509.Name([A(CN, ' a,b=c+d<e>f#g;h"i\\j ')]), r"CN=\ a\,b\=c\+d\<e\>f\#g\;h\"i\\j\ "),
    (x509.Name([A(CN, "#x"), A(CN, "   ")]), r"CN=\ \ \ ,CN=\#x"),
    (
        x509.Name(
            [
                A(NameOID.DOMAIN_COMPONENT, "com"),
                A(NameOID.DOMAIN_COMPONENT, "mycp"),
                A(NameOID.USER_ID, "u1"),
                A(NameOID.STREET_ADDRESS, "1 Way"),
            ]
        ),
        "STREET=1 Way,UID=u1,DC=mycp,DC=com",
    ),
    (
        x509.Name([A(NameOID.EMAIL_ADDRESS, "a@b.c"), A(NameOID.SERIAL_NUMBER, "77"), A(CN, "x")]),
        "CN=x,2.5.4.5=#13023737,1.2.840.113549.1.9.1=#16056140622e63",
    ),
    (
        x509.Name(
            [
                x509.RelativeDistinguishedName([A(NameOID.ORGANIZATIONAL_UNIT_NAME, "z"), A(CN, "multi")]),
                x509.RelativeDistinguishedName([A(NameOID.ORGANIZATION_NAME, "o")]),
            ]
        ),
        "O=o,OU=z+CN=multi",
    ),
    (x509.Name([A(CN, "Grüße 日本")]), "CN=Grüße 日本"),
    (x509.Name([A(CN, "univ", Type.UniversalString)]), "CN=#1c10000000750000006e0000006900000076"),
    (x509.Name([A(CN, "t61", Type.T61String)]), "CN=t61"),
    (x509.Name([A(CN, "nul\0x\ry\r")]), "CN=nul\\00x\ry\\\r"),
    (x509.Name([]), ""),
    (
        x509.Name([A(x509.ObjectIdentifier("2.999.1234567.1"), "big"), A(CN, "c")]),
        "CN=c,2.999.1234567.1=#0c03626967",
    ),
]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return make_authority(tmp_path)


@pytest.mark.parametrize(("subject", "expected"), SUBJECTS, ids=[expected for _, expected in SUBJECTS])
def test_a_subject_is_written_as_java_does(authority: Authority, subject: x509.Name, expected: str) -> None:
    issued = authority.issue("client", subject=subject)
    assert ParsedCertificate.parse_pem(issued.certificate_file.read_text()).subject == expected


def test_utf_16_is_read_as_such(authority: Authority) -> None:
    """Java 17 takes it for UTF-8, which makes nonsense of it."""
    issued = authority.issue("client", subject=x509.Name([A(CN, "bmp é", Type.BMPString)]))
    assert ParsedCertificate.parse_pem(issued.certificate_file.read_text()).subject == "CN=bmp é"


@pytest.mark.parametrize("days", [30, 365 * 100])  # of two ways in which a certificate has its end
def test_the_expiry_time_of_a_certificate_is_read(authority: Authority, days: int) -> None:
    before = datetime.datetime.now(datetime.UTC).timestamp()
    issued = authority.issue("client", good_for=datetime.timedelta(days=days))
    found = ParsedCertificate.parse_pem(issued.certificate_file.read_text())
    assert found.not_after_seconds == pytest.approx(before + days * 86400, abs=60)


def test_a_damaged_certificate_raises_only_value_error(authority: Authority) -> None:
    """Cut short or with an octet changed, it is read or raises ValueError, and nothing else."""
    der = ssl.PEM_cert_to_DER_cert(authority.ca_file.read_text())
    assert ParsedCertificate.parse(der).subject == "CN=ca of tests"
    for position in range(len(der)):
        with pytest.raises(ValueError):  # noqa: PT011
            ParsedCertificate.parse(der[:position])
        for octet in (0x00, 0x80, 0x84, 0xFF):
            with contextlib.suppress(ValueError):
                ParsedCertificate.parse(der[:position] + bytes([octet]) + der[position + 1 :])


def test_a_pem_file_without_a_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no PEM certificate in it"):
        ParsedCertificate.parse_pem("-----BEGIN PRIVATE KEY-----")
