"""Requests that are nearly right, for some seconds; `make fuzz` goes on for minutes, with other ones."""

from __future__ import annotations

from random import Random

import pytest
import trio

from kafscale.api.table import APIS
from tests.devtools.fuzz import fuzz
from tests.devtools.fuzz_frames import make_frame, mutate
from tests.devtools.process import BrokerProcess

SEED = 8
SECONDS = 3.0
TOPIC_ID = bytes(range(16))


async def test_requests_that_are_nearly_right_harm_nobody(broker: BrokerProcess) -> None:
    findings = await fuzz(broker, seed=SEED, seconds=SECONDS)
    assert findings.problems == []
    assert findings.answered_count > 10  # otherwise nothing was tried; on a calm machine there are hundreds
    assert findings.closed_count > 2


def test_every_api_and_version_is_tried() -> None:
    random = Random(SEED)
    tried = {
        (frame.api.key, frame.version)
        for frame in (make_frame(random, correlation_id=1, topic_id=TOPIC_ID, mutated_share=0.5) for _ in range(5000))
    }
    assert tried == {(each.key, version) for each in APIS for version in range(each.min_version, each.max_version + 1)}


def test_a_seed_makes_the_same_requests_and_another_one_others() -> None:
    def made(seed: int) -> list[bytes]:
        random = Random(seed)
        return [make_frame(random, correlation_id=1, topic_id=TOPIC_ID, mutated_share=0.5).data for _ in range(50)]

    assert made(1) == made(1) != made(2)


@pytest.mark.parametrize("seed", range(20))
def test_mutations_are_bounded(seed: int) -> None:
    data = bytes(range(256)) * 4
    assert len(mutate(Random(seed), data)) < 4 * len(data)


@pytest.mark.parametrize("what", ["Traceback", "were answered in"])
async def test_what_must_not_be_is_found(what: str, own_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "Traceback":
        with (own_broker.directory / "stderr.log").open("a") as log:
            log.write("Traceback (most recent call last): planted\n")
    else:
        monkeypatch.setattr("tests.devtools.fuzz.SILENCE_SECONDS", 0.0)
    with trio.fail_after(30):
        findings = await fuzz(own_broker, seed=SEED, seconds=3.0)
    assert any(what in problem for problem in findings.problems)
