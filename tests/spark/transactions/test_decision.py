"""Decisions as text, and which runs are superseded."""

import json

import pytest

from kafscale.errors import KafkaError
from kafscale.spark.transactions.decisions import FORMER_MAX_COUNT, Decision, Prepared, RecordSpan

PREPARED = Prepared(
    transactional_id="q.task-0-0",
    producer_id=7,
    producer_epoch=3,
    spans=(RecordSpan(topic="t", partition=1, first=10, last=19, count=4),),
)
DECISION = Decision(batch=12, run="b", former=("a",), unfinished=(PREPARED, PREPARED))


@pytest.mark.parametrize("decision", [DECISION, Decision(batch=0, run="a")])
def test_a_decision_reads_back_from_its_text(decision):
    assert Decision.of_text(decision.to_text()) == decision


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        json.dumps({**json.loads(DECISION.to_text()), "version": 2}).encode(),
        json.dumps({**json.loads(DECISION.to_text()), "more": 1}).encode(),
        json.dumps({**json.loads(DECISION.to_text()), "unfinished": [{"spans": []}]}).encode(),
    ],
)
def test_decisions_of_other_versions_are_refused(text):
    with pytest.raises(KafkaError, match="can't be read"):
        Decision.of_text(text)


def test_the_last_few_runs_are_remembered():
    decision = Decision(batch=0, run="0")
    assert decision.followed_by("0") == ()
    for number in range(1, 20):
        decision = Decision(batch=number, run=str(number), former=decision.followed_by(str(number)))
    assert decision.former == tuple(str(number) for number in range(18, 18 - FORMER_MAX_COUNT, -1))
