"""ListPartitionReassignments of the CLI: what each broker has to do, and what balance would move.

Who is not the controller, or does not know these fields, gives no `balance`.
"""

from __future__ import annotations

import attrs

from kafscale.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kafscale.wire.messages.own import OWN_TAG
from kafscale.wire.schema import Array, Nullable, wire


@attrs.define(kw_only=True)
class BalancedBroker:
    """A broker that serves, what it leads or is to lead, and what that would be; -1 bytes a second: not known."""

    broker_id: int = wire("int32")
    bytes_per_second: int = wire("int64")
    partition_count: int = wire("int32")
    planned_bytes_per_second: int = wire("int64")
    planned_partition_count: int = wire("int32")


@attrs.define(kw_only=True)
class BusyPartition:
    topic: str = wire("string")
    partition_index: int = wire("int32")
    bytes_per_second: int = wire("int64")


@attrs.define(kw_only=True)
class PlannedMove:
    topic: str = wire("string")
    partition_index: int = wire("int32")
    target: int = wire("int32")


@attrs.define(kw_only=True)
class ToldBalance:
    """`is_waiting`: nothing is evened just now, as not all brokers have measured their load yet."""

    is_waiting: bool = wire("bool")
    brokers: list[BalancedBroker] = wire(Array(BalancedBroker))
    busiest: list[BusyPartition] = wire(Array(BusyPartition))
    moves: list[PlannedMove] = wire(Array(PlannedMove))


@attrs.define(kw_only=True)
class BalanceRequest(ListPartitionReassignmentsRequest):
    """`released` are topics of which what was moved by hand may move as well; null: all."""

    wants_balance: bool = wire("bool", tag=OWN_TAG, default=False)
    releases_all: bool = wire("bool", tag=OWN_TAG + 1, default=False)
    released: list[str] = wire(Array("string"), tag=OWN_TAG + 2, factory=list)


@attrs.define(kw_only=True)
class BalanceResponse(ListPartitionReassignmentsResponse):
    balance: ToldBalance | None = wire(Nullable(ToldBalance), tag=OWN_TAG, default=None)
