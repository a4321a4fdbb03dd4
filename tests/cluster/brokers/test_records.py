"""Which brokers partitions may go to, by their records."""

from __future__ import annotations

import itertools

import attrs
import pytest

from kafscale.cluster.brokers.records import BrokerRecord, BrokerState
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.node import Endpoint

RECORD = BrokerRecord(
    incarnation=1,
    state=BrokerState.LIVE,
    endpoints={"PLAIN": Endpoint("h", 1), "TLS": None},
    directory_id="d",
    acknowledges_locally=False,
    unsettled=("e",),
)


@pytest.mark.parametrize(
    ("state", "is_leaving", "is_draining"), list(itertools.product(BrokerState, [False, True], [False, True]))
)
def test_partitions_go_to_who_serves_and_stays_and_should_go_to_who_is_not_drained(
    state: BrokerState, is_leaving: bool, is_draining: bool
) -> None:
    record = attrs.evolve(RECORD, state=state, is_leaving=is_leaving, is_draining=is_draining)
    assert record.stays == (state is BrokerState.LIVE and not is_leaving)
    assert record.may_lead == (state is BrokerState.LIVE and not is_leaving and not is_draining)


def test_a_record_keeps_what_a_later_version_has_added() -> None:
    """As a controller of the earlier version would have taken it away, when it declared the broker away and back."""
    later = encode(RECORD)[:-1] + b',"is_quarantined":true}'
    found = decode(BrokerRecord, later)
    assert encode(attrs.evolve(found, state=BrokerState.AWAY)).count(b'"is_quarantined":true') == 1
    assert decode(BrokerRecord, encode(RECORD)) == RECORD
    assert b"others" not in encode(RECORD)
