"""Files of secrets that others may read are told at the start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kafscale.config import Settings, SslSettings
from kafscale.server.secret_files import warn_of_readable


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a broker with all files of secrets that there are, readable for their user alone, but for one with a blank."""
    for name in ("key.pem", "password", "secret.key", "a token", "broker.pem"):
        (tmp_path / name).touch(mode=0o600)
    (tmp_path / "broker.pem").chmod(0o644)  # which is no secret
    return Settings(
        ssl=SslSettings(
            ssl_certificate_file=tmp_path / "broker.pem",
            ssl_key_file=tmp_path / "key.pem",
            ssl_key_password_file=tmp_path / "password",
        ),
        admin_token_file=tmp_path / "a token",
    )


def told(settings: Settings, path: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    warn_of_readable(settings, key_file=path / "secret.key")
    return [each.getMessage() for each in caplog.records]


def test_private_files_are_accepted(settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert told(settings, tmp_path, caplog) == []
    (tmp_path / "secret.key").unlink()  # as before the first user
    assert told(settings, tmp_path, caplog) == []


@pytest.mark.parametrize("mode", [0o640, 0o604])
@pytest.mark.parametrize("name", ["key.pem", "password", "secret.key", "a token"])
def test_each_secret_file_readable_by_others_is_named_with_a_working_fix(
    name: str, mode: int, settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).chmod(mode)
    (message,) = told(settings, tmp_path, caplog)
    assert f"{tmp_path / name} ({mode:04o})" in message
    subprocess.run(message.split("`")[1], shell=True, check=True)
    assert told(settings, tmp_path, caplog) == []


def test_several_readable_secret_files_give_one_warning(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("key.pem", "a token"):
        (tmp_path / name).chmod(0o644)
    (message,) = told(settings, tmp_path, caplog)
    subprocess.run(message.split("`")[1], shell=True, check=True)
    assert told(settings, tmp_path, caplog) == []


def test_a_certificate_that_has_the_key_is_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broker.pem").touch(mode=0o644)
    settings = Settings(ssl=SslSettings(ssl_certificate_file=tmp_path / "broker.pem"))
    (message,) = told(settings, tmp_path, caplog)
    assert "broker.pem (0644)" in message


def test_a_group_readable_secret_file_of_another_user_gives_no_warning(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key.pem").chmod(0o640)
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    assert told(settings, tmp_path, caplog) == []
    (tmp_path / "key.pem").chmod(0o644)
    (message,) = told(settings, tmp_path, caplog)
    assert message.endswith(f"`chmod o= {tmp_path / 'key.pem'}` keeps them from it")
