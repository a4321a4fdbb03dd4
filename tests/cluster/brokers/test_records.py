"""Which brokers partitions may go to, by their records."""

from __future__ import annotations

import itertools

import pytest

from kafscale.cluster.brokers.records import BrokerRecord, BrokerState


@pytest.mark.parametrize(
    ("state", "is_leaving", "is_draining"), list(itertools.product(BrokerState, [False, True], [False, True]))
)
def test_partitions_go_to_who_serves_and_stays_and_should_go_to_who_is_not_drained(
    state: BrokerState, is_leaving: bool, is_draining: bool
) -> None:
    record = BrokerRecord(
        incarnation=1,
        state=state,
        endpoints={},
        directory_id="d",
        acknowledges_locally=False,
        is_leaving=is_leaving,
        is_draining=is_draining,
    )
    assert record.stays == (state is BrokerState.LIVE and not is_leaving)
    assert record.may_lead == (state is BrokerState.LIVE and not is_leaving and not is_draining)
