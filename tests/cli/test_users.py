"""`kafscale users`: of a broker that is stopped, and over a connection, also one that has to log in."""

import json

import pytest

from kafscale.cli.main import run
from tests.devtools.external.clients import wait_until
from tests.devtools.processes.process import broker_process

SECRET = "the admin's secret"


@pytest.fixture
def password_file(tmp_path):
    path = tmp_path / "password"
    path.write_text(SECRET + "\n")
    return path


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "not" / "there"


def listed(capsys, *where):
    capsys.readouterr()
    assert run(["users", "list", "--json", *map(str, where)]) == 0
    rows = json.loads(capsys.readouterr().out)
    return [(row["user"], row["mechanism"], row["iterations"]) for row in rows]


def add(user, password_file, *where):
    return run(["users", "add", user, "--iterations", "4096", "--password-file", str(password_file), *map(str, where)])


def test_users_of_a_broker_that_is_stopped(data_dir, password_file, capsys):
    offline = ["--data-dir", data_dir]
    assert add("admin", password_file, *offline) == 0
    assert add("bob", password_file, *offline, "--mechanism", "SCRAM-SHA-256") == 0
    assert listed(capsys, *offline) == [
        ("admin", "SCRAM-SHA-256", 4096),
        ("admin", "SCRAM-SHA-512", 4096),
        ("bob", "SCRAM-SHA-256", 4096),
    ]
    assert run(["users", "remove", "admin", "--mechanism", "SCRAM-SHA-256", *map(str, offline)]) == 0
    assert run(["users", "remove", "bob", *map(str, offline)]) == 0
    assert listed(capsys, *offline) == [("admin", "SCRAM-SHA-512", 4096)]
    assert run(["users", "remove", "bob", *map(str, offline)]) == 1
    assert "there is no user" in capsys.readouterr().err


def test_the_first_user_of_several_brokers_is_added_before_there_are_any(tmp_path, password_file, capsys):
    """None could start, as the command's own directory might have had what the bucket has not."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    store = ["--store", f"file:{bucket}"]
    key = ["--secret-key-file", str(tmp_path / "unused" / "secret.key")]
    assert add("admin", password_file, *store, "--data-dir", tmp_path / "unused") == 0
    options = ["--several-brokers", "--broker-id", "1", *store, *key, "--listen", "SASL_PLAINTEXT=127.0.0.1:0"]
    with broker_process(*options) as broker:
        assert broker.further_listeners
    assert listed(capsys, *store, *key, "--data-dir", tmp_path / "other") == [
        ("admin", "SCRAM-SHA-256", 4096),
        ("admin", "SCRAM-SHA-512", 4096),
    ]


def test_adding_a_user_from_another_data_dir_does_not_take_over_the_bucket(tmp_path, password_file):
    """It could not share it with others any more."""
    store = ["--store", f"file:{tmp_path / 'bucket'}"]
    with broker_process(*store) as broker:
        broker.stop()
        assert add("admin", password_file, *store, "--data-dir", tmp_path / "unused") == 0
        broker.options = ("--several-brokers", *broker.options)
        broker.start()


def test_the_first_admin_logs_in_and_adds_others(data_dir, password_file, tmp_path, capsys, monkeypatch):
    with broker_process("--listen", "SASL_PLAINTEXT=127.0.0.1:0") as broker:
        broker.stop()
        assert add("admin", password_file, "--data-dir", broker.data_dir) == 0
        broker.start()
        assert add("eve", password_file, "--data-dir", broker.data_dir) == 1
        assert "is in use by process" in capsys.readouterr().err
        bootstrap = ["--bootstrap", broker.further_listeners[0]]
        assert run(["topics", "list", *bootstrap]) == 1  # who has not logged in
        config = tmp_path / "client.properties"
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config="
            f'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="{SECRET}";\n'
        )
        logged_in = [*bootstrap, "--command-config", str(config)]
        assert add("bob", password_file, *logged_in) == 0
        monkeypatch.setenv("KAFSCALE_USER_PASSWORD", "another")
        assert run(["users", "add", "carol", *logged_in]) == 0
        assert {user for user, _, _ in listed(capsys, *logged_in)} == {"admin", "bob", "carol"}
        assert run(["users", "remove", "bob", *logged_in]) == 0
        assert {user for user, _, _ in listed(capsys, *logged_in)} == {"admin", "carol"}
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanisms=SCRAM-SHA-256\nsasl.username=bob\nsasl.password=x\n"
        )
        assert run(["topics", "list", *logged_in]) == 1
        assert "SASL_AUTHENTICATION_FAILED" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("user", "password", "why"), [("", SECRET, "must not be empty"), ("Ⅸ", SECRET, "SASLprep"), ("a", "", "empty")]
)
def test_names_and_passwords_that_are_not_fit(user, password, why, data_dir, tmp_path, capsys):
    (tmp_path / "password").write_text(password)
    assert add(user, tmp_path / "password", "--data-dir", data_dir) == 2
    assert why in capsys.readouterr().err


def test_a_password_is_not_an_argument_and_is_never_printed(data_dir, password_file, capsys):
    assert run(["users", "add", "a", SECRET, "--data-dir", str(data_dir)]) == 2
    assert add("a", password_file, "--data-dir", data_dir) == 0
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err.partition("\n")[2]


def test_without_a_password_and_a_terminal(data_dir, capsys, monkeypatch):
    monkeypatch.delenv("KAFSCALE_USER_PASSWORD", raising=False)
    assert run(["users", "add", "a", "--data-dir", str(data_dir)]) == 2
    assert "--password-file: a password is needed" in capsys.readouterr().err


def test_a_store_that_forgets(data_dir, password_file, capsys):
    assert add("a", password_file, "--data-dir", data_dir, "--store", "memory:") == 2
    assert "keeps no users" in capsys.readouterr().err


def test_users_are_added_beside_brokers_that_share_the_bucket(password_file, data_dir, tmp_path, capsys):
    key_file = tmp_path / "secret.key"
    key_file.write_text("ab" * 32)
    options = ("--listen", "SASL_PLAINTEXT=127.0.0.1:0", "--secret-key-file", str(key_file))
    with broker_process("--several-brokers", *options) as broker:
        offline = [
            "--data-dir",
            data_dir,
            "--store",
            f"file:{broker.data_dir / 'bucket'}",
            "--secret-key-file",
            key_file,
        ]
        assert add("admin", password_file, *offline) == 0
        assert [user for user, _, _ in listed(capsys, *offline)] == ["admin"] * 2
        config = tmp_path / "client.properties"
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config="
            f'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="{SECRET}";\n'
        )
        logged_in = ["--bootstrap", broker.further_listeners[0], "--command-config", str(config)]
        wait_until(lambda: run(["topics", "list", *logged_in]) == 0, "the broker knows the user")
