"""What the files of TLS may hold: one line that says what to do for what they may not."""

from __future__ import annotations

import datetime
import logging
import re
from pathlib import Path

import pytest

from kafscale.config import SecurityProtocol, SslClientAuth, SslSettings
from kafscale.errors import StartupError
from kafscale.server.tls.contexts import Tls
from kafscale.testing.certificates import Authority, make_authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("certificates"))


def settings_of(authority: Authority, **changes: object) -> SslSettings:
    issued = authority.issue("broker")
    given = {"ssl_certificate_file": issued.certificate_file, "ssl_key_file": issued.key_file, **changes}
    return SslSettings(**given)  # type: ignore[arg-type]


def test_certificate_and_key_can_be_in_one_file(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue("broker")
    both = tmp_path / "both.pem"
    both.write_text(issued.certificate_file.read_text() + issued.key_file.read_text())
    assert Tls.open(SslSettings(ssl_certificate_file=both)).current.certificate.subject == "CN=broker"


def test_a_key_with_a_password(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue("locked", password=b"a secret")
    password = tmp_path / "password"
    files = {"ssl_certificate_file": issued.certificate_file, "ssl_key_file": issued.key_file}
    password.write_text("a secret\n")
    Tls.open(SslSettings(**files, ssl_key_password_file=password))
    password.write_text("another\n")
    with pytest.raises(StartupError, match="can't be decrypted; give its password in --ssl-key-password-file"):
        Tls.open(SslSettings(**files, ssl_key_password_file=password))
    with pytest.raises(StartupError, match="the private key is encrypted; give its --ssl-key-password-file"):
        Tls.open(SslSettings(**files))
    password.write_text("\n")
    with pytest.raises(StartupError, match="holds no secret; give one of 1 to 1024 bytes"):
        Tls.open(SslSettings(**files, ssl_key_password_file=password))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ssl_certificate_file": "none.pem"}, "--ssl-certificate-file: '.*none.pem' can't be read (No such file"),
        (
            {"ssl_certificate_file": "empty.pem"},
            "--ssl-certificate-file: '.*empty.pem' has no certificate: there is no PEM",
        ),
        (
            {"ssl_certificate_file": "binary"},
            "--ssl-certificate-file: '.*binary' is not UTF-8; give a file in PEM format",
        ),
        ({"ssl_key_file": "none.pem"}, "--ssl-key-file: '.*none.pem' can't be read (No such file"),
        ({"ssl_key_file": "empty.pem"}, "--ssl-key-file: '.*empty.pem' has no private key for it; give a PEM file of"),
        ({"ssl_key_file": "other-key.pem"}, "--ssl-key-file: '.*other-key.pem' is not the key of the certificate in"),
        (
            {"ssl_key_file": None},
            "--ssl-certificate-file: '.*broker.pem' has no private key for it; give a PEM file of the",
        ),
        (
            {"ssl_ciphers": "NONE"},
            "--ssl-ciphers: 'NONE' names no cipher; allowed: names that `openssl ciphers -v` shows",
        ),
        (
            {"ssl_client_auth": SslClientAuth.REQUIRED, "ssl_client_ca_file": "empty.pem"},
            "--ssl-client-ca-file: '.*empty.pem' has no certificates of authorities; give a PEM file",
        ),
    ],
)
def test_invalid_tls_files_are_refused_with_advice(
    authority: Authority, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    (tmp_path / "empty.pem").write_text("")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "other-key.pem").write_bytes(authority.issue("other").key_file.read_bytes())
    paths = {
        name: tmp_path / value if type(value) is str and "cipher" not in name else value
        for name, value in changes.items()
    }
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(StartupError, match=rf"\A{pattern}"):
        Tls.open(settings_of(authority, **paths))


def test_an_expired_certificate_is_reported_and_does_not_replace_a_valid_one(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    tls = Tls.open(settings_of(authority))
    before = tls.current
    authority.issue("broker", good_for=-datetime.timedelta(days=2))
    with pytest.raises(
        StartupError, match=r"the certificate of 'CN=broker' expired on 20\d\d-.* UTC; give one that is"
    ):
        tls.load()
    assert tls.current is before
    with caplog.at_level(logging.WARNING):
        expired = Tls.open(tls.settings)
    assert "expired on" in caplog.text
    authority.issue("broker")
    expired.load()
    assert expired.current.certificate.not_after_seconds > before.certificate.not_after_seconds - 60


def test_sasl_clients_are_not_asked_for_a_certificate(authority: Authority) -> None:
    tls = Tls.open(settings_of(authority, ssl_client_auth=SslClientAuth.REQUIRED, ssl_client_ca_file=authority.ca_file))
    assert tls.context(SecurityProtocol.SSL) is tls.current.asking
    assert tls.context(SecurityProtocol.SASL_SSL) is tls.current.silent is tls.admin_context
