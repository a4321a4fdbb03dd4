"""AlterUserScramCredentials and DescribeUserScramCredentials."""

import json
import logging

import pytest

from kafscale.api.security import alter_user_scram_credentials, describe_user_scram_credentials
from kafscale.cluster.registries.scram_users import ScramUsers
from kafscale.config import SaslMechanism
from kafscale.security.verifiers import salt_password
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.error_codes import (
    DUPLICATE_RESOURCE,
    NONE,
    RESOURCE_NOT_FOUND,
    UNACCEPTABLE_CREDENTIAL,
    UNKNOWN_SERVER_ERROR,
    UNSUPPORTED_SASL_MECHANISM,
)
from kafscale.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from tests.api.handlers import ask, some_services
from tests.devtools.processes.sasl import PASSWORD, SALT, verifier_of

SHA_256, SHA_512 = 1, 2


@pytest.fixture
async def services(tmp_path):
    users = ScramUsers(store=MemoryMetadataStore(), key_file=tmp_path / "key", may_make_key=True)
    await users.load()
    return some_services(scram_users=users)


def upsert(name, mechanism=SHA_512, *, iterations=4096, salt=SALT, salted_password=None):
    if salted_password is None:
        of = SaslMechanism.SCRAM_SHA_512 if mechanism == SHA_512 else SaslMechanism.SCRAM_SHA_256
        salted_password = salt_password(of, PASSWORD.encode(), salt, 4096)
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted_password
    )


def deletion(name, mechanism=SHA_512):
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


async def alter(services, *, upsertions=(), deletions=()):
    request = AlterUserScramCredentialsRequest(upsertions=list(upsertions), deletions=list(deletions))
    response = await ask(alter_user_scram_credentials.API, services, request)
    return {each.user: each.error_code for each in response.results}


async def describe(services, *names):
    request = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names] or None)
    return (await ask(describe_user_scram_credentials.API, services, request)).results


async def test_a_password_that_a_client_has_salted_can_be_checked(services):
    assert await alter(services, upsertions=[upsert("alice"), upsert("bob", SHA_256)]) == {"alice": NONE, "bob": NONE}
    users = services.scram_users
    assert users.verifier(SaslMechanism.SCRAM_SHA_512, "alice") == verifier_of(SaslMechanism.SCRAM_SHA_512, PASSWORD)
    assert users.verifier(SaslMechanism.SCRAM_SHA_256, "bob") == verifier_of(SaslMechanism.SCRAM_SHA_256, PASSWORD)
    assert users.verifier(SaslMechanism.SCRAM_SHA_256, "alice") is None


async def test_password_changes_are_in_the_audit_log(services, caplog):
    caplog.set_level(logging.INFO, "kafscale.audit")
    refused = upsert("eve", iterations=1)
    await alter(services, upsertions=[upsert("alice"), upsert("bob", SHA_256), refused])
    await alter(services, deletions=[deletion("alice"), deletion("nobody")])
    told = [json.loads(each.getMessage()) for each in caplog.records if each.name == "kafscale.audit"]
    assert [(each["event"], each["user"], each["mechanism"]) for each in told] == [
        ("password_set", "alice", "SCRAM-SHA-512"),
        ("password_set", "bob", "SCRAM-SHA-256"),
        ("password_removed", "alice", "SCRAM-SHA-512"),
    ]
    assert {each["principal"] for each in told} == {"User:ANONYMOUS"}
    assert "salt" not in caplog.text


async def test_failed_password_changes_are_not_in_the_audit_log(tmp_path, caplog):
    caplog.set_level(logging.INFO, "kafscale.audit")
    users = ScramUsers(store=MemoryMetadataStore(), key_file=tmp_path / "no" / "key", may_make_key=True)
    await users.load()
    await alter(some_services(scram_users=users), upsertions=[upsert("a")])
    assert "password_set" not in caplog.text


async def test_users_are_described_by_mechanism_and_iterations_only(services):
    await alter(services, upsertions=[upsert("bob", SHA_256), upsert("alice", iterations=8192)])
    await alter(services, upsertions=[upsert("alice", SHA_256)])
    described = await describe(services)
    assert [each.user for each in described] == ["alice", "bob"]
    assert [(info.mechanism, info.iterations) for info in described[0].credential_infos] == [(1, 4096), (2, 8192)]


async def test_users_that_are_named(services):
    await alter(services, upsertions=[upsert("alice")])
    results = await describe(services, "alice", "nobody", "bob", "bob", "bob")
    assert {each.user: each.error_code for each in results} == {
        "alice": NONE,
        "nobody": RESOURCE_NOT_FOUND,
        "bob": DUPLICATE_RESOURCE,
    }
    assert results[1].error_message == "Attempt to describe a user credential that does not exist: nobody"
    assert results[2].error_message == (
        "Cannot describe SCRAM credentials for the same user twice in a single request: bob"
    )


async def test_describing_users_without_any_returns_nothing(services):
    assert await describe(services) == []


async def test_removing_one_mechanism_and_then_the_user(services):
    await alter(services, upsertions=[upsert("alice")])
    await alter(services, upsertions=[upsert("alice", SHA_256)])
    assert await alter(services, deletions=[deletion("alice")]) == {"alice": NONE}
    assert await alter(services, deletions=[deletion("alice")]) == {"alice": RESOURCE_NOT_FOUND}
    assert [info.mechanism for info in (await describe(services, "alice"))[0].credential_infos] == [SHA_256]
    assert await alter(services, deletions=[deletion("alice", SHA_256)]) == {"alice": NONE}
    assert await describe(services) == []


@pytest.mark.parametrize(
    ("asked", "error_code"),
    [
        (upsert("a", iterations=4095), UNACCEPTABLE_CREDENTIAL),
        (upsert("a", iterations=16_385), UNACCEPTABLE_CREDENTIAL),
        (upsert("a", iterations=-1), UNACCEPTABLE_CREDENTIAL),
        (upsert("a", iterations=2**31 - 1), UNACCEPTABLE_CREDENTIAL),
        (upsert("", iterations=4096), UNACCEPTABLE_CREDENTIAL),
        (upsert("Ⅸ"), UNACCEPTABLE_CREDENTIAL),
        (upsert("x" * 256), UNACCEPTABLE_CREDENTIAL),
        (upsert("a", salt=b""), UNACCEPTABLE_CREDENTIAL),
        (upsert("a", salt=b"x" * 1025), UNACCEPTABLE_CREDENTIAL),
        (upsert("a", salted_password=b""), UNACCEPTABLE_CREDENTIAL),
        (upsert("a", 0), UNSUPPORTED_SASL_MECHANISM),
        (upsert("a", 3), UNSUPPORTED_SASL_MECHANISM),
    ],
)
async def test_invalid_credentials_are_refused(asked, error_code, services):
    assert await alter(services, upsertions=[asked, upsert("good")]) == {asked.name: error_code, "good": NONE}
    assert [each.user for each in await describe(services)] == ["good"]


async def test_salts_and_salted_passwords_of_any_length_are_taken_as_in_kafka(services):
    asked = [upsert(f"salt-{count}", salt=b"s" * count) for count in (1, 4, 11, 1024)]
    asked += [upsert(f"password-{count}", salted_password=b"p" * count) for count in (1, 32, 63, 65, 4096)]
    assert await alter(services, upsertions=asked) == {each.name: NONE for each in asked}


async def test_the_bounds_of_iterations_are_allowed(services):
    asked = [upsert("least", iterations=4096), upsert("most", iterations=16_384)]
    assert await alter(services, upsertions=asked) == {"least": NONE, "most": NONE}


async def test_a_user_named_twice_in_one_request_is_refused_and_unchanged(services):
    await alter(services, upsertions=[upsert("alice")])
    twice = {"deletions": [deletion("alice")], "upsertions": [upsert("alice", SHA_256), upsert("bob")]}
    assert await alter(services, **twice) == {"alice": DUPLICATE_RESOURCE, "bob": NONE}
    assert [info.mechanism for info in (await describe(services, "alice"))[0].credential_infos] == [SHA_512]


async def test_a_key_file_that_can_not_be_made(tmp_path):
    users = ScramUsers(store=MemoryMetadataStore(), key_file=tmp_path / "no" / "key", may_make_key=True)
    await users.load()
    assert await alter(some_services(scram_users=users), upsertions=[upsert("a")]) == {"a": UNKNOWN_SERVER_ERROR}
