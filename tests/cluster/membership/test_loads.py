from __future__ import annotations

import attrs

from kafscale.cluster.membership.peers.heartbeats import heartbeat
from kafscale.cluster.membership.peers.loads import (
    CARRIED_MOST_COUNT,
    CARRIED_SECONDS,
    FRESH_SECONDS,
    PATIENCE_SECONDS,
    UNKNOWN,
    HeardLoads,
    load_message,
    load_of,
)
from kafscale.cluster.membership.state import ClusterState
from kafscale.formats.manifest import PartitionId
from kafscale.log.load import TOLD_MOST_COUNT, BrokerLoad
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.codec import decode, encode
from kafscale.wire.messages.brokers import BrokerHeartbeatRequest, OwnHeartbeatRequest

TOPIC, OTHER = bytes(16), b"\1" * 16
TWO = {1: 11, 2: 12}


@attrs.define
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def load(*partitions: tuple[PartitionId, int], others: int = 0, is_settled: bool = True) -> BrokerLoad:
    return BrokerLoad(busiest=dict(partitions), others_count=10, others_bytes_per_second=others, is_settled=is_settled)


def test_loads_are_complete_when_every_broker_has_reported() -> None:
    heard = HeardLoads(Clock())
    heard.take(1, 11, load(((TOPIC, 0), 5000), others=100))
    assert heard.look(TWO) is None
    heard.take(2, 11, load())  # an earlier incarnation
    assert heard.look(TWO) is None
    heard.take(2, 12, load(is_settled=False))
    assert heard.look(TWO) is None
    heard.take(2, 12, load(((OTHER, 3), 7000)))
    loads = heard.look(TWO)
    assert loads is not None
    assert loads.is_known
    assert loads.busiest == {TOPIC: {0: 5000}, OTHER: {3: 7000}}
    assert loads.others == {1: 10.0, 2: 0.0}


def test_a_missing_load_report_is_awaited_and_then_counts_are_used() -> None:
    heard = HeardLoads(clock := Clock())
    for _ in range(int(PATIENCE_SECONDS) + 1):
        heard.take(1, 11, load())
        assert heard.look(TWO) is None
        clock.now += 1.0
    heard.take(1, 11, load())
    assert heard.look(TWO) is UNKNOWN
    heard.take(2, 12, load())
    found = heard.look(TWO)
    assert found is not None
    assert found.is_known
    clock.now += FRESH_SECONDS + 1.0
    assert heard.look(TWO) is None  # neither has told anything for a while


def test_a_moved_partition_keeps_its_former_load_until_its_next_leader_reports() -> None:
    heard = HeardLoads(clock := Clock())
    heard.take(1, 11, load(((TOPIC, 0), 5000)))
    for _ in range(40):
        clock.now += 1.0
        heard.take(1, 11, load())
        heard.take(2, 12, load())
        found = heard.look(TWO)
        assert found is not None
        assert found.busiest == {TOPIC: {0: 5000}}
    heard.take(2, 12, load(((TOPIC, 0), 4000)))
    found = heard.look(TWO)
    assert found is not None
    assert found.busiest == {TOPIC: {0: 4000}}
    clock.now += CARRIED_SECONDS + 1.0
    for broker_id, incarnation in TWO.items():
        heard.take(broker_id, incarnation, load())
    found = heard.look(TWO)
    assert found is not None
    assert found.busiest == {}


def test_a_heartbeat_carries_a_load_that_earlier_versions_ignore() -> None:
    told = load(((TOPIC, 0), 5000), ((TOPIC, 7), 4000), ((OTHER, 1), 3000), others=77)
    request = heartbeat(ClusterState(MemoryMetadataStore(), 1, 11), 5)
    without = b"".join(encode(request, 0))
    assert without == b"".join(
        encode(
            BrokerHeartbeatRequest(
                broker_id=1, broker_epoch=11, current_metadata_offset=5, want_fence=False, want_shut_down=False
            ),
            0,
        )
    )
    request.load = load_message(told)
    sent = b"".join(encode(request, 0))
    found = decode(OwnHeartbeatRequest, 0, memoryview(sent))
    assert found.load is not None
    assert load_of(found.load) == told
    older = decode(BrokerHeartbeatRequest, 0, memoryview(sent))
    assert (older.broker_id, older.broker_epoch, older.current_metadata_offset) == (1, 11, 5)
    assert decode(OwnHeartbeatRequest, 0, memoryview(without)).load is None


def test_a_heartbeat_stays_small_and_no_more_is_taken() -> None:
    many = [((bytes([index % 250]) * 16, index), 1 << 30) for index in range(TOLD_MOST_COUNT + 1)]
    request = heartbeat(ClusterState(MemoryMetadataStore(), 1, 11), 5)
    request.load = load_message(load(*many[:-1]))
    assert len(b"".join(encode(request, 0))) < 8 << 10
    assert len(load_of(load_message(load(*many))).busiest) == TOLD_MOST_COUNT


def test_reported_loads_have_a_count_limit() -> None:
    """Nobody looks at what was heard, where that is not the controller."""
    heard = HeardLoads(Clock())
    for number in range(CARRIED_MOST_COUNT + 10):
        heard.take(1, 11, load(((TOPIC, number), 1)))
        if number == CARRIED_MOST_COUNT - 1:
            heard.take(1, 11, load(((TOPIC, 0), 2)))
    assert len(heard._busiest) == CARRIED_MOST_COUNT
    found = heard.look({1: 11})
    assert found is not None
    assert found.busiest[TOPIC][0] == 2
    assert 1 not in found.busiest[TOPIC]


def test_a_load_below_nothing_is_none() -> None:
    told = load_message(load(((TOPIC, 0), -5), others=-7))
    told.others_count = -1
    assert load_of(told) == BrokerLoad(
        busiest={(TOPIC, 0): 0}, others_count=0, others_bytes_per_second=0, is_settled=True
    )
