"""What is shown of users that there are not."""

from __future__ import annotations

from collections import Counter

import pytest

from kafscale.config import SaslMechanism
from kafscale.security.verifiers import KINDS_MAX_COUNT, Decoys, ScramVerifier, make_verifier
from tests.devtools.processes.sasl import SCRAMS, SECRET

SHA_256, SHA_512 = SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512
NAMES = [f"user-{number}" for number in range(400)]


def verifier(iterations: int, salt_bytes: int) -> ScramVerifier:
    return ScramVerifier(iterations=iterations, salt=bytes(salt_bytes), stored_key=b"", server_key=b"")


def kind(decoy: ScramVerifier) -> tuple[int, int]:
    return decoy.iterations, len(decoy.salt)


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_a_decoy_is_the_same_each_time_and_looks_like_a_verifier(mechanism: SaslMechanism) -> None:
    decoys = Decoys(SECRET)
    first, made = decoys.make(mechanism, "nobody"), make_verifier(mechanism, "pencil")
    assert first == Decoys(SECRET).make(mechanism, "nobody")
    assert first.salt != decoys.make(mechanism, "somebody").salt
    assert first.salt != Decoys(b"another secret").make(mechanism, "nobody").salt
    shape = [len(first.salt), len(first.stored_key), len(first.server_key), first.iterations]
    assert shape == [len(made.salt), len(made.stored_key), len(made.server_key), made.iterations]


@pytest.mark.parametrize(("iterations", "salt_bytes"), [(4096, 12), (16_384, 64), (10_000, 1024)])
def test_a_decoy_has_the_iterations_and_the_salt_of_the_users_of_its_mechanism(
    iterations: int, salt_bytes: int
) -> None:
    decoys = Decoys(SECRET)
    decoys.add(SHA_256, verifier(iterations, salt_bytes))
    decoy = decoys.make(SHA_256, "nobody")
    assert kind(decoy) == (iterations, salt_bytes)
    assert len(set(decoy.salt)) > 8
    assert kind(decoys.make(SHA_512, "nobody")) == (8192, 24)
    decoys.remove(SHA_256, verifier(iterations, salt_bytes))
    assert kind(decoys.make(SHA_256, "nobody")) == (8192, 24)


def test_kinds_of_users_are_as_frequent_among_decoys() -> None:
    """By a kind that decoys never have one would know a user."""
    decoys = Decoys(SECRET)
    for number in range(40):
        decoys.add(SHA_256, verifier(4096 if number % 4 else 8192, 24))
    before = {name: kind(decoys.make(SHA_256, name)) for name in NAMES}
    assert 0.65 < Counter(before.values())[4096, 24] / len(NAMES) < 0.85
    decoys.add(SHA_256, verifier(8192, 24))
    changed = [name for name in NAMES if kind(decoys.make(SHA_256, name)) != before[name]]
    assert len(changed) < len(NAMES) / 20  # that a kind changes tells that there is no such user
    assert {before[name] for name in changed} <= {(4096, 24)}


def test_kinds_that_few_users_have_are_not_looked_at() -> None:
    decoys = Decoys(SECRET)
    for number in range(KINDS_MAX_COUNT):
        for _ in range(2):
            decoys.add(SHA_512, verifier(4096 + number, 24))
    for number in range(100):
        decoys.add(SHA_512, verifier(9000 + number, 24))
    assert {decoys.make(SHA_512, name).iterations for name in NAMES} == set(range(4096, 4096 + KINDS_MAX_COUNT))


def test_the_usual_mechanism_is_that_of_most_users_and_the_stronger_one_of_two_alike() -> None:
    decoys = Decoys(SECRET)
    assert decoys.usual_mechanism == SHA_512
    decoys.add(SHA_256, verifier(4096, 24))
    assert decoys.usual_mechanism == SHA_256
    decoys.add(SHA_512, verifier(4096, 24))
    assert decoys.usual_mechanism == SHA_512
