"""The users whose passwords the broker knows."""

import attrs
import pytest

import kafscale.cluster.registries.scram_users as module
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.registries.scram_users import CredentialKey, ScramUsers
from kafscale.config import SaslMechanism
from kafscale.errors import KafkaError, StartupError
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.error_codes import POLICY_VIOLATION
from tests.devtools.processes.sasl import ALICE, PASSWORD, verifier_of

SHA_256, SHA_512 = SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512
KEY = CredentialKey(SHA_512, ALICE)
VERIFIER = verifier_of(SHA_512, PASSWORD)


@pytest.fixture
def store():
    return MemoryMetadataStore()


async def load(store, path, *, may_make_key=True):
    users = ScramUsers(store=store, key_file=path, may_make_key=may_make_key)
    await users.load()
    return users


async def test_a_user_outlasts_a_restart(store, tmp_path):
    users = await load(store, tmp_path / "key")
    await users.alter({KEY: VERIFIER})
    again = await load(store, tmp_path / "key")
    again.check_readable()
    assert users.verifier(*attrs_of(KEY)) == again.verifier(*attrs_of(KEY)) == VERIFIER
    assert again.decoy(SHA_512, "nobody") == users.decoy(SHA_512, "nobody")


def attrs_of(key):
    return key.mechanism, key.user


async def test_the_metadata_has_nothing_to_try_passwords_against(store, tmp_path):
    users = await load(store, tmp_path / "key")
    await users.alter({KEY: VERIFIER})
    (entry,) = await store.list("")
    assert entry.key == "scram-users/SCRAM-SHA-512/alice"
    for secret in (VERIFIER.salt, VERIFIER.stored_key, VERIFIER.server_key, b"4096", b"iterations"):
        assert secret not in entry.value


async def test_a_sealed_verifier_copied_to_another_user_is_rejected(store, tmp_path):
    users = await load(store, tmp_path / "key")
    await users.alter({KEY: VERIFIER})
    (entry,) = await store.list("")
    await store.commit(Transaction(puts={"scram-users/SCRAM-SHA-512/admin": entry.value}))
    assert users.verifier(SHA_512, "admin") is None
    assert users.has(CredentialKey(SHA_512, "admin"))


async def test_changes_reach_other_brokers_that_follow_the_metadata(store, tmp_path):
    first = await load(store, tmp_path / "key")
    await first.alter({KEY: VERIFIER})
    second = await load(store, tmp_path / "key")
    await first.alter({KEY: None, CredentialKey(SHA_256, "a/b"): verifier_of(SHA_256, PASSWORD)})
    assert second.verifier(SHA_512, ALICE) is None
    assert second.verifier(SHA_256, "a/b") is not None
    assert second.iterations() == {"a/b": {SHA_256: 4096}}


async def test_another_key_file(store, tmp_path):
    users = await load(store, tmp_path / "key")
    await users.alter({KEY: VERIFIER})
    (tmp_path / "other").write_text("ab" * 32)
    for path in (tmp_path / "other", tmp_path / "none"):
        other = await load(store, path)
        assert other.verifier(SHA_512, ALICE) is None
        with pytest.raises(StartupError, match="such as alice, can't be checked"):
            other.check_readable()
    await other.alter({KEY: None})  # one can do without them
    other.check_readable()


async def test_a_key_file_that_is_named_and_not_there(store, tmp_path):
    with pytest.raises(StartupError, match="--secret-key-file"):
        await load(store, tmp_path / "key", may_make_key=False)
    assert not (tmp_path / "key").exists()


async def test_the_key_file_is_created_only_when_needed(store, tmp_path):
    users = await load(store, tmp_path / "key")
    await users.alter({KEY: None})
    assert not (tmp_path / "key").exists()


async def test_a_decoy_for_an_unknown_user_has_the_iterations_of_real_users(store, tmp_path):
    users = await load(store, tmp_path / "key")
    assert users.decoy(SHA_512, "nobody").iterations == 8192
    await users.alter({KEY: VERIFIER, CredentialKey(SHA_256, ALICE): attrs.evolve(VERIFIER, iterations=5000)})
    for each in (users, await load(store, tmp_path / "key")):
        shown = each.decoy(SHA_512, "nobody")
        assert (shown.iterations, len(shown.salt)) == (VERIFIER.iterations, len(VERIFIER.salt))
        assert each.decoy(SHA_256, "nobody").iterations == 5000
    await users.alter({KEY: attrs.evolve(VERIFIER, iterations=6000)})
    assert users.decoy(SHA_512, "nobody").iterations == 6000
    await users.alter({KEY: None})
    assert users.decoy(SHA_512, "nobody").iterations == 8192
    assert users.usual_mechanism == SHA_256


async def test_the_number_of_users_is_limited(store, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "USERS_MAX_COUNT", 1)
    users = await load(store, tmp_path / "key")
    await users.alter({KEY: VERIFIER})
    with pytest.raises(KafkaError) as caught:
        await users.alter({CredentialKey(SHA_512, "bob"): VERIFIER})
    assert caught.value.code == POLICY_VIOLATION
    await users.alter({KEY: VERIFIER})
    await users.alter({KEY: None, CredentialKey(SHA_512, "bob"): VERIFIER})


async def test_a_mechanism_of_a_later_version_is_left_alone(store, tmp_path):
    await store.commit(Transaction(puts={"scram-users/SCRAM-SHA3-512/alice": b"?"}))
    users = await load(store, tmp_path / "key")
    users.check_readable()
    assert users.iterations() == {}


async def test_a_verifier_is_decrypted_only_by_other_brokers(store, tmp_path, monkeypatch):
    """Each of 10,000 passwords of a request took 40 µs more of one step of the event loop."""
    ours = await load(store, tmp_path / "key")
    await ours.alter({KEY: VERIFIER})
    theirs = await load(store, tmp_path / "key")
    opened = []
    open_sealed = module.SecretKeys.open
    monkeypatch.setattr(
        module.SecretKeys, "open", lambda self, *args: opened.append(args[0]) or open_sealed(self, *args)
    )
    other = attrs.evolve(VERIFIER, iterations=5000)
    await ours.alter({KEY: other})
    assert len(opened) == 1  # by the other broker
    assert theirs.verifier(*attrs_of(KEY)) == ours.verifier(*attrs_of(KEY)) == other
