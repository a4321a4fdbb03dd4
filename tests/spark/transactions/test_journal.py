"""The last decision of a query among those of others, whose transactions may be open, or aborted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kafscale.spark.brokers.cluster import Cluster
from kafscale.spark.transactions.decisions import FIRST_LOOK_OFFSETS, TOPIC, Decision, DecisionJournal, Lead
from kafscale.wire import compression
from kafscale.wire.records import Record
from tests.devtools.processes.process import BrokerProcess, broker_process

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]  # slow beside others, as it needs a broker; no Spark

TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with broker_process() as running:
        yield running


@pytest.fixture
def cluster(broker) -> Iterator[Cluster]:
    with closing(Cluster(bootstrap=[broker.kafka])) as cluster:
        yield cluster


def decide(cluster: Cluster, journal: DecisionJournal, *decisions: Decision) -> None:
    lead = Lead.take(cluster, journal.transactional_id, TIMEOUT_MS)
    for decision in decisions:
        journal.write(lead, decision, 0)
        lead.commit()


def test_there_is_none_at_first(cluster):
    assert DecisionJournal.open(cluster, "new").last() is None


def test_a_querys_last_decision_is_found_before_many_of_other_queries(cluster):
    journal = DecisionJournal.open(cluster, "seldom")
    decide(cluster, journal, Decision(batch=0, run="a"), Decision(batch=1, run="a"))
    other = Lead.take(cluster, "often", TIMEOUT_MS)
    for number in range(FIRST_LOOK_OFFSETS // 2 + 5):  # each with a marker
        other.write(TOPIC, journal.partition, Record(key=b"often", value=b"%d" % number), compression.NONE)
        other.commit()
        assert journal.last() == Decision(batch=1, run="a")


def test_aborted_and_open_transactions_are_undecided(cluster):
    journal = DecisionJournal.open(cluster, "mine")
    decide(cluster, journal, Decision(batch=0, run="a"))
    lead = Lead.take(cluster, "mine", TIMEOUT_MS)
    journal.write(lead, Decision(batch=1, run="a"), 0)
    assert journal.last() == Decision(batch=0, run="a")
    lead.transaction.end(committed=False)
    assert journal.last() == Decision(batch=0, run="a")


def test_open_transactions_of_others_are_not_waited_for(cluster):
    journal = DecisionJournal.open(cluster, "quick")
    other = Lead.take(cluster, "stuck", TIMEOUT_MS)
    other.write(TOPIC, journal.partition, Record(key=b"stuck", value=b""), compression.NONE)
    decide(cluster, journal, Decision(batch=3, run="a"))
    assert journal.last() == Decision(batch=3, run="a")
    other.transaction.end(committed=False)
