"""Requests that are nearly right, for some seconds; `make fuzz` goes on for minutes, with other ones."""

from __future__ import annotations

from random import Random

import pytest
import trio

from kafscale.api.table import APIS, every_api
from tests.devtools.processes.process import BrokerProcess
from tests.hostile.fuzz import fuzz, may_be_silent
from tests.hostile.fuzz_frames import Frame, make_frame, mutate

SEED = 8
SECONDS = 3.0
TOPIC_ID = bytes(range(16))


async def test_mutated_requests_cause_no_problem(broker: BrokerProcess) -> None:
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


@pytest.mark.parametrize("made_as", ["ListGroups", "Produce"])
@pytest.mark.parametrize(("key", "is_silent"), [(0, True), (1, True), (16, False), (999, False)])
def test_a_mutated_frame_that_became_a_produce_may_go_unanswered(made_as: str, key: int, is_silent: bool) -> None:
    """Seed 4147116309: a frame that had become a Produce with acks=0 was waited for, and called a failure."""
    api = next(each for each in every_api() if each.name == made_as)
    body = key.to_bytes(2) + bytes(20)
    assert may_be_silent(Frame(api=api, version=0, data=len(body).to_bytes(4) + body)) == is_silent
    assert not may_be_silent(Frame(api=api, version=0, data=b"\0\0\0\1\1"))


@pytest.mark.parametrize("what", ["Traceback", "were answered in"])
async def test_tracebacks_and_unanswered_requests_are_reported(
    what: str, own_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "Traceback":
        with (own_broker.directory / "stderr.log").open("a") as log:
            log.write("Traceback (most recent call last): planted\n")
    else:
        monkeypatch.setattr("tests.hostile.fuzz.SILENCE_SECONDS", 0.0)
    with trio.fail_after(30):
        findings = await fuzz(own_broker, seed=SEED, seconds=3.0)
    assert any(what in problem for problem in findings.problems)
