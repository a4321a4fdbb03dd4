"""What brokers that share a bucket have to do, and what balance would move: told by the controller."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from kafscale.client.admin import TIMEOUT_MS
from kafscale.client.brokers import list_brokers
from kafscale.client.client import Client
from kafscale.client.reassignments import At
from kafscale.config import Address
from kafscale.errors import BrokerUnavailable
from kafscale.login.failures import check
from kafscale.wire.messages.replicas import BalancedBroker, BalanceRequest, BalanceResponse


def known(bytes_per_second: int) -> int | None:
    """Return a load that a broker was told to have; None where it is not known."""
    return None if bytes_per_second < 0 else bytes_per_second


@attrs.frozen(kw_only=True)
class Balance:
    """What each broker leads and has to do, by id, the busiest partitions, and what would move, and whereto.

    `moving_count` partitions are on their way. `is_waiting`: brokers measure their load still, and nothing is evened
    before they have.
    """

    is_waiting: bool
    moving_count: int
    brokers: Mapping[int, BalancedBroker]
    busiest: Mapping[At, int]
    moves: Mapping[At, int]


async def find_balance(client: Client, released: Collection[str] | None = ()) -> Balance | None:
    """Ask what would move, if nothing of these topics, or of all, were assigned to a broker by hand.

    None if no broker decides just now, it can't be reached, or is of a version that does not tell. Raises KafkaError,
    BrokerUnavailable.
    """
    controller = next((each for each in await list_brokers(client) if each.is_controller), None)
    if controller is None:
        return None
    request = BalanceRequest(
        timeout_ms=TIMEOUT_MS,
        wants_balance=True,
        releases_all=released is None,
        released=sorted(released or ()),
    )
    try:
        connection = await client.connection_to(Address(controller.host, controller.port))
        response = await connection.request(request, BalanceResponse)
    except BrokerUnavailable:
        return None
    check(response.error_code, "balance", response.error_message)
    told = response.balance
    if told is None:
        return None
    return Balance(
        is_waiting=told.is_waiting,
        moving_count=sum(len(topic.partitions) for topic in response.topics),
        brokers={each.broker_id: each for each in told.brokers},
        busiest={(each.topic, each.partition_index): each.bytes_per_second for each in told.busiest},
        moves={(each.topic, each.partition_index): each.target for each in told.moves},
    )
