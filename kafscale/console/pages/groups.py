"""Groups: the list, and one group with its members and live lag."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

import attrs
from starlette.responses import Response
from starlette.routing import Route

from kafscale.client.groups import (
    CLASSIC,
    SHARE,
    GroupDescription,
    GroupMember,
    committed_offsets,
    delete_group,
    describe_group,
    list_groups,
)
from kafscale.client.groups import TopicPartition as Place
from kafscale.client.lag import GroupLag, GroupPosition
from kafscale.client.many import member_counts
from kafscale.console.pages.base import PageRequest, action, view
from kafscale.console.pages.fields import now_ms
from kafscale.console.paging import paged
from kafscale.console.plots import plot, spark
from kafscale.console.rights import missing_right
from kafscale.console.samples import GROUPS_MAX_COUNT
from kafscale.errors import KafkaError
from kafscale.escaping import escaped
from kafscale.security.acls import AclOperation
from kafscale.wire.error_codes import GROUP_ID_NOT_FOUND
from kafscale.wire.messages.groups import ListedGroup

NAME, STATE, LAG = SORTS = ("name", "state", "lag")
POSITIONS_MAX_COUNT = 500  # of a page that is drawn each second
MEMBERS_MAX_COUNT = 200
LIVE_GROUPS_MAX_COUNT = 2_000  # a longer list is not asked for again and again


@attrs.frozen(kw_only=True)
class GroupOfList:
    """A group in the list; None is unknown."""

    name: str
    state: str
    type: str
    members: int | None
    lag: int | None
    spark: str


@attrs.frozen(kw_only=True)
class PlaceRow:
    """A partition of a group."""

    place: Place
    position: GroupPosition
    owner: GroupMember | None


NOWHERE = GroupPosition(committed=None, start=None, end=None)


async def group_list(page: PageRequest) -> Response:
    """Show a page of the groups that fit the filters, with the lags of these."""
    client = await page.client()
    listed = await list_groups(client)
    parameters = {name: page.argument(name) for name in ("q", "state", "type", "sort")}
    found = await _sorted(page, _filtered(listed, parameters), parameters["sort"])
    pages = paged(found, page.argument("page"), "/groups", parameters=parameters)
    return page.render(
        "groups_list.html" if page.is_fragment else "groups.html",
        rows=await _rows(page, pages.rows),
        pages=pages,
        parameters=parameters,
        sorts=SORTS,
        states=sorted({group.group_state for group in listed if group.group_state}),
        types=sorted({_type(group) for group in listed}),
        knows_all_lags=len(listed) <= GROUPS_MAX_COUNT,
        is_live=len(listed) <= LIVE_GROUPS_MAX_COUNT,
        live=f"/groups?{urlencode({**parameters, 'page': pages.number})}",
    )


async def _rows(page: PageRequest, groups: Sequence[ListedGroup]) -> list[GroupOfList]:
    lags = await page.samples.lags([group.group_id for group in groups])
    members = await member_counts(await page.client(), {group.group_id: _type(group) for group in groups})
    now, series = page.samples.clock(), page.samples.samples.lags
    return [
        GroupOfList(
            name=group.group_id,
            state=group.group_state,
            type=_type(group),
            members=members.get(group.group_id),
            lag=_total(lags.get(group.group_id)),
            spark=spark(series[group.group_id].last_hour(now)) if group.group_id in series else "",
        )
        for group in groups
    ]


def _total(lag: GroupLag | None) -> int | None:
    return lag.total if lag and lag.positions else None


def _type(group: ListedGroup) -> str:
    return (group.group_type or CLASSIC).lower()  # older brokers know only classic groups, and name no type


def _filtered(listed: Sequence[ListedGroup], parameters: dict[str, str]) -> list[ListedGroup]:
    text, state, kind = parameters["q"].lower(), parameters["state"], parameters["type"]
    return [
        group
        for group in listed
        if (not text or text in group.group_id.lower())
        and (not state or group.group_state == state)
        and (not kind or _type(group) == kind)
    ]


async def _sorted(page: PageRequest, groups: list[ListedGroup], sort: str) -> list[ListedGroup]:
    if sort == STATE:
        return sorted(groups, key=lambda group: group.group_state)
    if sort != LAG:
        return groups
    if len(groups) <= GROUPS_MAX_COUNT:
        await page.samples.lags([group.group_id for group in groups])
    now = page.samples.clock()
    known = {name: series.latest(now) or 0.0 for name, series in page.samples.samples.lags.items()}
    return sorted(groups, key=lambda group: -known.get(group.group_id, -1.0))


async def one_group(page: PageRequest) -> Response:
    """Show a group: members, assignment, positions and the lag of the last hour."""
    client, name = await page.client(), page.argument("group")
    described = await _described(page, name)
    lag = (await page.samples.lags([name])).get(name)
    if lag is None and described.type != SHARE:
        await committed_offsets(client, name)  # raises the reason
    positions = lag.positions if lag else {}
    owners = described.owners
    places = sorted({*positions, *owners})
    series = page.samples.samples.lags.get(name)
    values = series.last_hour(page.samples.clock()) if series else []
    return page.render(
        "group_live.html" if page.is_fragment else "group.html",
        name=name,
        group=described,
        members=described.members[:MEMBERS_MAX_COUNT],
        rows=[
            PlaceRow(place=place, position=positions.get(place, NOWHERE), owner=owners.get(place))
            for place in places[:POSITIONS_MAX_COUNT]
        ],
        places_count=len(places),
        topics=sorted({place.topic for place in places}),
        lag=_total(lag),
        plot=plot("Lag", [("Lag", values)], now_ms(), unit="records") if values else None,
        reset_missing=why_fixed(described, AclOperation.READ, name),
        delete_missing=why_fixed(described, AclOperation.DELETE, name),
    )


def why_fixed(group: GroupDescription, operation: AclOperation, name: str) -> str:
    """Return why the user can't change a group now, empty if nothing forbids it."""
    if group.type == SHARE:
        return "The console does not change share groups."
    if group.members:
        return f"The group has {len(group.members)} members; stop them first."
    return missing_right(group.operations, operation, f"group '{escaped(name)}'")


async def _described(page: PageRequest, name: str) -> GroupDescription:
    """Describe a group; of a share group, or one of another unknown type, only what the list tells."""
    client = await page.client()
    try:
        return await describe_group(client, name)
    except KafkaError as exc:
        if exc.code != GROUP_ID_NOT_FOUND:
            raise
        for listed in await list_groups(client):
            if listed.group_id == name and _type(listed) != CLASSIC:
                return GroupDescription(state=listed.group_state, type=_type(listed), members=())
        raise


async def delete(page: PageRequest) -> Response:
    name = page.argument("group")
    await delete_group(await page.client(), name)
    page.samples.forget(name)
    return page.redirect("/groups", f"Group {name} is deleted.")


ROUTES = [
    Route("/groups", view(group_list)),
    Route("/groups/one", view(one_group)),
    Route("/groups/delete", action(delete), methods=["POST"]),
]
