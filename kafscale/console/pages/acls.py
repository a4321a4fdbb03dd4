"""Access control lists: list, filter, add, delete."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.responses import Response
from starlette.routing import Route

from kafscale.client.access import create_acls, delete_acls, list_acls
from kafscale.client.brokers import cluster_operations
from kafscale.console.pages.base import PageRequest, action, view
from kafscale.console.paging import paged
from kafscale.console.rights import CLUSTER, missing_right, unless_refused
from kafscale.errors import ConfigError, NotFound
from kafscale.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from kafscale.wire.error_codes import CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED

TYPES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
PATTERNS = (PatternType.LITERAL, PatternType.PREFIXED)
PERMISSIONS = (Permission.ALLOW, Permission.DENY)
OPERATIONS = tuple(operation for operation in AclOperation if operation >= AclOperation.ALL)
FIELDS = ("resource_type", "pattern_type", "resource_name", "principal", "host", "operation", "permission")
Code = TypeVar("Code", bound=IntEnum)


async def acl_list(page: PageRequest) -> Response:
    client = await page.client()
    operations = await cluster_operations(client)
    parameters = {name: page.argument(name) for name in ("principal", "type", "name")}
    refusals = (SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED)
    bindings, unseen = await unless_refused(list_acls(client, _filter(parameters)), [], codes=refusals)
    bindings = sorted(bindings, key=lambda binding: (binding.principal, binding.resource_type, binding.resource_name))
    return page.render(
        "acls.html",
        pages=paged(bindings, page.argument("page"), "/acls", parameters=parameters),
        parameters=parameters,
        unseen=unseen,
        missing=missing_right(operations, AclOperation.ALTER, CLUSTER),
        types=TYPES,
        patterns=PATTERNS,
        permissions=PERMISSIONS,
        operations=OPERATIONS,
        link_of=_link_of,
    )


def _filter(parameters: Mapping[str, str]) -> AclFilter:
    """Return the filter; a name finds all lists that apply to it."""
    name = parameters["name"] or None
    return AclFilter(
        resource_type=_code(ResourceType, parameters["type"]) if parameters["type"] else ResourceType.ANY,
        resource_name=name,
        pattern_type=PatternType.MATCH if name else PatternType.ANY,
        principal=parameters["principal"] or None,
    )


def _link_of(binding: AclBinding) -> str:
    """Return the address that deletes this list."""
    fields = {field: getattr(binding, field) for field in FIELDS}
    words = {field: value.name if isinstance(value, IntEnum) else value for field, value in fields.items()}
    return f"/acls/delete?{urlencode(words)}"


def _code(codes: type[Code], word: str) -> Code:
    """Return the code of a word. Raises ConfigError."""
    code = codes.__members__.get(word)
    if code is None or code.value == 0:
        raise ConfigError(f"'{word[:50]}' is unknown; allowed: {', '.join(name for name in codes.__members__)}")
    return code


def _binding(given: Mapping[str, Any]) -> AclBinding:
    """Read a list from the fields of a form or an address. Raises ConfigError."""
    words = {field: str(given.get(field, "")) for field in FIELDS}
    resource_type = _code(ResourceType, words["resource_type"])
    is_cluster = resource_type is ResourceType.CLUSTER
    binding = AclBinding(
        resource_type=resource_type,
        pattern_type=_code(PatternType, words["pattern_type"]),
        resource_name=CLUSTER_NAME if is_cluster else words["resource_name"],
        principal=words["principal"].strip(),
        host=words["host"].strip() or WILDCARD,
        operation=_code(AclOperation, words["operation"]),
        permission=_code(Permission, words["permission"]),
    )
    if not binding.resource_name:
        raise ConfigError(f"give a name, or {WILDCARD} for all")
    if ":" not in binding.principal:
        raise ConfigError("give a principal such as User:alice, or User:* for all")
    return binding


async def add(page: PageRequest) -> Response:
    """Add a list for each chosen operation."""
    chosen = [str(word) for word in page.form.getlist("operation")]
    if not chosen:
        raise ConfigError("choose an operation")
    bindings = [_binding({**page.form, "operation": word}) for word in chosen]
    await create_acls(await page.client(), bindings)
    return page.redirect("/acls", f"Added: {'; '.join(str(binding) for binding in bindings)}.")


async def delete(page: PageRequest) -> Response:
    """Delete exactly one list."""
    binding = _binding(page.request.query_params)
    wanted = AclFilter(**{field: getattr(binding, field) for field in FIELDS})
    if not await delete_acls(await page.client(), wanted):
        raise NotFound(f"there is no such list: {binding}")
    return page.redirect("/acls", f"Deleted: {binding}.")


ROUTES = [
    Route("/acls", view(acl_list)),
    Route("/acls", action(add), methods=["POST"]),
    Route("/acls/delete", action(delete), methods=["POST"]),
]
