"""Brokers: their states, drain and undrain, moves of partitions, the balance, and configs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs
from starlette.responses import Response
from starlette.routing import Route

from kafscale.client.broker_rows import SERVING, BrokerRow, describe_brokers
from kafscale.client.brokers import (
    At,
    cluster_operations,
    described_configs,
    find_balance,
    list_places,
    list_reassignments,
    reassign,
    release_moved,
    set_draining,
)
from kafscale.console.pages.base import PageRequest, action, view
from kafscale.console.rights import CLUSTER, missing_right, unless_refused
from kafscale.errors import ConfigError
from kafscale.login.failures import failure
from kafscale.security.acls import AclOperation
from kafscale.wire.error_codes import BROKER_ID_NOT_REGISTERED, CLUSTER_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION

SHOWN_MAX_COUNT = 200  # of moves, planned moves, and a broker's partitions
ID_MAX_DIGITS = 10
NOT_TOLD_CODES = (UNSUPPORTED_VERSION, CLUSTER_AUTHORIZATION_FAILED)
SOURCES = {1: "topic", 2: "changed", 3: "changed for all", 4: "started with", 5: "default"}  # of configs


@attrs.frozen
class PartitionMove:
    """A partition that moves or would move. `leader` is -1 if no broker leads it."""

    at: At
    leader: int
    target: int


async def broker_list(page: PageRequest) -> Response:
    """Show brokers, moves and the plan of the balance, live."""
    client = await page.client()
    balance, _ = await unless_refused(find_balance(client), None, codes=NOT_TOLD_CODES)
    places = await list_places(client)
    rows = await describe_brokers(client, places, balance)
    leaders = {place.at: place.broker_id for place in places}
    moving, _ = await unless_refused(list_reassignments(client), {}, codes=NOT_TOLD_CODES)
    operations = await cluster_operations(client)
    plan: Mapping[At, int] = {} if balance is None else balance.moves
    return page.render(
        "brokers_live.html" if page.is_fragment else "brokers.html",
        rows=rows,
        serving=SERVING,
        balance=balance,
        moving=_moves(moving, leaders),
        moving_count=len(moving),
        plan=_moves(plan, leaders),
        plan_count=len(plan),
        unseen=missing_right(operations, AclOperation.DESCRIBE, CLUSTER),
        drain_missing=missing_right(operations, AclOperation.ALTER_CONFIGS, CLUSTER),
        move_missing=missing_right(operations, AclOperation.ALTER, CLUSTER),
    )


def _moves(targets: Mapping[At, int], leaders: Mapping[At, int]) -> Sequence[PartitionMove]:
    return [PartitionMove(at, leaders.get(at, -1), targets[at]) for at in sorted(targets)[:SHOWN_MAX_COUNT]]


async def one_broker(page: PageRequest) -> Response:
    """Show a broker: its drain with progress, its partitions by topic, and its configs."""
    client, broker_id = await page.client(), _broker_id(page)
    places = await list_places(client)
    row = _row_of(await describe_brokers(client, places), broker_id)
    led = Counter(place.topic for place in places if place.broker_id == broker_id)
    shown = led.most_common(SHOWN_MAX_COUNT)
    return page.render(
        "broker_live.html" if page.is_fragment else "broker.html",
        broker=row,
        led=shown,
        topics_count=len(led),
        configs=[] if page.is_fragment else await described_configs(client, broker_id),
        sources=SOURCES,
    )


def _broker_id(page: PageRequest) -> int:
    text = str(page.request.path_params["broker_id"])
    if not (text.isascii() and text.isdigit() and len(text) <= ID_MAX_DIGITS):
        raise failure(BROKER_ID_NOT_REGISTERED, f"broker '{text}'", "ids are numbers; the list of brokers has all")
    return int(text)


def _row_of(rows: Sequence[BrokerRow], broker_id: int) -> BrokerRow:
    for row in rows:
        if row.broker == broker_id:
            return row
    raise failure(BROKER_ID_NOT_REGISTERED, f"broker {broker_id}", "it does not exist; the list of brokers has all")


async def drain(page: PageRequest) -> Response:
    """Move all partitions of a broker to others; a dead broker's stay, and are named."""
    client, broker_id = await page.client(), _broker_id(page)
    row = _row_of(await describe_brokers(client, await list_places(client)), broker_id)
    if row.state not in SERVING and row.leads:
        raise ConfigError(
            f"broker {broker_id} doesn't serve ({row.state}), and {row.leads} partitions wait for it: start it first, "
            f"or run `kafscale brokers replace {broker_id}` if it doesn't come back"
        )
    await set_draining(client, broker_id, True)
    return page.redirect("/brokers", f"Broker {broker_id} drains: {row.leads} partitions move to others.")


async def undrain(page: PageRequest) -> Response:
    broker_id = _broker_id(page)
    await set_draining(await page.client(), broker_id, False)
    return page.redirect("/brokers", f"Broker {broker_id} may lead partitions again.")


async def balance(page: PageRequest) -> Response:
    """Undo moves by hand, so that all partitions are balanced."""
    client = await page.client()
    released_count = await release_moved(client, await list_places(client))
    return page.redirect("/brokers", f"{released_count} partitions that were moved by hand may move again.")


async def cancel(page: PageRequest) -> Response:
    """Cancel the moves that are under way."""
    client = await page.client()
    refused = await reassign(client, dict.fromkeys(await list_reassignments(client)))
    notice = f"{next(iter(refused.values()))}" if refused else "The moves are cancelled."
    return page.redirect("/brokers", notice)


ROUTES = [
    Route("/brokers", view(broker_list)),
    Route("/brokers/balance", action(balance), methods=["POST"]),
    Route("/brokers/cancel", action(cancel), methods=["POST"]),
    Route("/brokers/{broker_id}", view(one_broker)),
    Route("/brokers/{broker_id}/drain", action(drain), methods=["POST"]),
    Route("/brokers/{broker_id}/undrain", action(undrain), methods=["POST"]),
]
