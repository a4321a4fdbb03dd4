"""Which brokers partitions may go to, by their records."""

from __future__ import annotations

import itertools
import json

import attrs
import pytest

from kafscale.cluster.membership.node import Endpoint
from kafscale.cluster.membership.records import BrokerRecord, BrokerState, Placement, decode_row, encode_row
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.errors import DamagedObject

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
def test_partitions_go_to_live_brokers_that_stay_and_preferably_are_not_drained(
    state: BrokerState, is_leaving: bool, is_draining: bool
) -> None:
    record = attrs.evolve(RECORD, state=state, is_leaving=is_leaving, is_draining=is_draining)
    assert record.stays == (state is BrokerState.LIVE and not is_leaving)
    assert record.may_lead == (state is BrokerState.LIVE and not is_leaving and not is_draining)


def test_a_record_keeps_fields_added_by_a_later_version() -> None:
    """As a controller of the earlier version would have taken it away, when it declared the broker away and back."""
    later = encode(RECORD)[:-1] + b',"is_quarantined":true}'
    found = decode(BrokerRecord, later)
    assert encode(attrs.evolve(found, state=BrokerState.AWAY)).count(b'"is_quarantined":true') == 1
    assert decode(BrokerRecord, encode(RECORD)) == RECORD
    assert b"others" not in encode(RECORD)


def test_an_endpoint_keeps_fields_added_by_a_later_version() -> None:
    later = encode(RECORD).replace(b'"port":1', b'"port":1,"protocol":"SSL"')
    found = decode(BrokerRecord, later)
    assert json.loads(encode(attrs.evolve(found, is_draining=True)))["endpoints"]["PLAIN"]["protocol"] == "SSL"


def test_each_placement_keeps_columns_added_by_a_later_version() -> None:
    """As a broker of the earlier version would have taken it away from a hundred partitions, when it moved one."""
    row = [Placement(1, 2, 2, 0), Placement(1, 2, 2, 0, 3), Placement(1, 2, 2, 0, recover=(1,))]
    later = json.loads(encode_row(row)) | {"pinned": {"0": True, "2": [1, {"x": 2}]}, "notes": {"0": None}}
    found = decode_row(json.dumps(later).encode())
    assert found == row
    found[0] = attrs.evolve(found[0], leader=2, epoch=3)
    found.append(Placement(3, 3, 3, 0))
    written = json.loads(encode_row(found))
    assert written.pop("pinned") == {"0": True, "2": [1, {"x": 2}]}
    assert written.pop("notes") == {"0": None}
    assert written == json.loads(encode_row([Placement(2, 3, 2, 0), *row[1:], Placement(3, 3, 3, 0)]))


@pytest.mark.parametrize("column", [[1, 2], 1, "text", {"2": 1}, {"all": 1}])
def test_a_row_with_a_column_not_keyed_by_index_is_unreadable(column: object) -> None:
    row = json.loads(encode_row([Placement(1, 2, 2, 0), Placement(1, 2, 2, 0)]))
    with pytest.raises(DamagedObject, match="a column added that is not by place"):
        decode_row(json.dumps(row | {"added": column}).encode())
