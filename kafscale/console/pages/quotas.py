"""Quotas of users, client ids and IP addresses: list, set, remove."""

from __future__ import annotations

import math
from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.datastructures import FormData, QueryParams
from starlette.responses import Response
from starlette.routing import Route

from kafscale.client.brokers import cluster_operations
from kafscale.client.quotas import CLIENT_ID, IP, KEYS, USER, Quota, alter_quotas, list_quotas
from kafscale.console.pages.base import PageRequest, action, view
from kafscale.console.paging import paged
from kafscale.console.rights import CLUSTER, missing_right, unless_refused
from kafscale.errors import ConfigError
from kafscale.security.acls import AclOperation

TYPES = (USER, CLIENT_ID, IP)
DEFAULT = "default:"  # before a type's name: the default of all names
ALL_KEYS = tuple(dict.fromkeys(key for keys in KEYS.values() for key in keys))


async def quota_list(page: PageRequest) -> Response:
    client = await page.client()
    operations = await cluster_operations(client)
    quotas, unseen = await unless_refused(list_quotas(client), [])
    return page.render(
        "quotas.html",
        pages=paged(quotas, page.argument("page"), "/quotas", parameters={}),
        unseen=unseen,
        missing=missing_right(operations, AclOperation.ALTER_CONFIGS, CLUSTER),
        types=TYPES,
        keys=ALL_KEYS,
        link_of=_link_of,
    )


def _link_of(quota: Quota, key: str) -> str:
    """Return the address that removes a quota."""
    names = {kind if name is not None else f"{DEFAULT}{kind}": name or "" for kind, name in quota.entity.items()}
    return f"/quotas/remove?{urlencode({**names, 'key': key})}"


def _entity(given: FormData | QueryParams) -> Mapping[str, str | None]:
    """Read names by type; a checked default has none. Raises ConfigError."""
    entity: dict[str, str | None] = {}
    for kind in TYPES:
        if f"{DEFAULT}{kind}" in given:
            entity[kind] = None
        elif given.get(kind):
            entity[kind] = str(given[kind])
    if not entity:
        raise ConfigError("name a user, a client id or an IP address, or choose a default")
    return entity


async def save(page: PageRequest) -> Response:
    key, text = str(page.form.get("key", "")), str(page.form.get("value", ""))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"'{text[:50]}' is not a quota: give a number above 0")
    await alter_quotas(await page.client(), _entity(page.form), {key: value})
    return page.redirect("/quotas", f"The quota {key} is set to {value:g}.")


async def remove(page: PageRequest) -> Response:
    key = page.argument("key")
    await alter_quotas(await page.client(), _entity(page.request.query_params), {key: None})
    return page.redirect("/quotas", f"The quota {key} is removed.")


ROUTES = [
    Route("/quotas", view(quota_list)),
    Route("/quotas", action(save), methods=["POST"]),
    Route("/quotas/remove", action(remove), methods=["POST"]),
]
