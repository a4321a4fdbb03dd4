"""What is kept of a password, and how it is encrypted."""

import errno
import os
import stat

import attrs
import pytest
from scramp import ScramMechanism

from kafscale.config import SaslMechanism
from kafscale.errors import DamagedObject, StartupError
from kafscale.security.secret_keys import SecretKeys, make_key_file, read_key_file
from kafscale.security.verifiers import check_password, check_user_name, make_verifier
from tests.devtools.processes.sasl import SALT, SCRAMS

KEYS = SecretKeys([bytes(range(32))])


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_a_verifier_is_the_one_of_rfc_5802_and_is_not_shown(mechanism):
    made = make_verifier(mechanism, "pencil", iterations=4096, salt=SALT)
    theirs = ScramMechanism(mechanism.value).make_auth_info("pencil", 4096, SALT)
    assert (made.salt, made.stored_key, made.server_key, made.iterations) == theirs
    assert repr(made) == "ScramVerifier(iterations=4096)"


def test_the_salt_is_another_one_each_time():
    first, second = (make_verifier(SaslMechanism.SCRAM_SHA_256, "pencil", iterations=4096) for _ in range(2))
    assert first.salt != second.salt


@pytest.mark.parametrize("name", ["alice", "CN=alice,O=Example", "ålice", "a b", "x" * 255])
def test_names_and_passwords_that_all_clients_send_alike(name):
    check_user_name(name)
    check_password(name)


@pytest.mark.parametrize("text", ["", "x" * 1025, "Ⅸ", "a\u00a0b", "bell\x07", "so\u00adft", "ª"])
def test_names_and_passwords_that_they_do_not(text):
    with pytest.raises(ValueError, match=r"Username"):
        check_user_name(text)
    with pytest.raises(ValueError, match="The password"):
        check_password(text)


def test_a_sealed_secret_opens_only_under_its_name_and_key():
    sealed = KEYS.seal("users/alice", b"verifier")
    assert b"verifier" not in sealed.data
    assert sealed.data != KEYS.seal("users/alice", b"verifier").data
    assert KEYS.open("users/alice", sealed) == b"verifier"
    with pytest.raises(DamagedObject, match="was not encrypted for it"):
        KEYS.open("users/bob", sealed)
    with pytest.raises(DamagedObject, match="another key"):
        SecretKeys([bytes(32)]).open("users/alice", sealed)


def test_a_changed_bit_is_seen():
    sealed = KEYS.seal("a", b"verifier")
    for changed in ({"data": bytes([sealed.data[0] ^ 1]) + sealed.data[1:]}, {"nonce": b"short"}, {"data": b""}):
        with pytest.raises(DamagedObject):
            KEYS.open("a", attrs.evolve(sealed, **changed))


def test_a_new_key_in_front_of_the_old_one(tmp_path):
    path = tmp_path / "secret.key"
    make_key_file(path)
    old = read_key_file(path)
    sealed = old.seal("a", b"verifier")
    path.write_text(f"# new\n{'ab' * 32}\n\n{path.read_text()}")
    both = read_key_file(path)
    assert both.open("a", sealed) == b"verifier"
    with pytest.raises(DamagedObject):
        old.open("a", both.seal("a", b"verifier"))


def test_a_key_file_is_for_its_user_alone_and_is_made_once(tmp_path):
    path = tmp_path / "secret.key"
    assert read_key_file(path) is None
    made = make_key_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key_file(path) == made
    assert repr(made) == "SecretKeys()"
    with pytest.raises(StartupError, match="exists"):
        make_key_file(path)


def test_a_key_file_is_whole_or_not_there(tmp_path, monkeypatch):
    """Half of one would keep the broker from its next start."""

    def fail(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StartupError, match="can't be made: No space left"):
        make_key_file(tmp_path / "secret.key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "# nothing\n", "abc\n", "ab" * 31, "zz" * 32, "ab" * 32 + "\nabc"])
def test_a_malformed_key_file_is_refused(text, tmp_path):
    (tmp_path / "secret.key").write_text(text)
    with pytest.raises(StartupError, match="is not a key file"):
        read_key_file(tmp_path / "secret.key")
