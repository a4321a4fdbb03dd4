"""`kafscale acls add|list|load|remove`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import IO, TYPE_CHECKING, Any

import click

from kafscale.cli.options import Bootstrap, ListOption, bootstrap_option, json_option, run_with_client, with_client
from kafscale.cli.output import say, show
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

if TYPE_CHECKING:
    from kafscale.client import Client

OPERATIONS = {
    operation.name.lower().replace("_", "-"): operation for operation in AclOperation if operation >= AclOperation.ALL
}


# The columns of `list` and `load`: a field of AclBinding, and its codes, which are written as words.
COLUMNS: Mapping[str, tuple[str, type[IntEnum] | None]] = {
    "resource": ("resource_type", ResourceType),
    "name": ("resource_name", None),
    "pattern": ("pattern_type", PatternType),
    "principal": ("principal", None),
    "host": ("host", None),
    "operation": ("operation", AclOperation),
    "permission": ("permission", Permission),
}


def _word(value: IntEnum | str) -> str:
    return value if isinstance(value, str) else value.name.lower().replace("_", "-")


def _resource_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--prefixed", is_flag=True, help="The name is a prefix of names."),
        click.option("--cluster", is_flag=True, help="The cluster."),
        click.option("--transactional-id", metavar="ID", help="A transactional id; * for all."),
        click.option("--group", metavar="NAME", help="A consumer group; * for all."),
        click.option("--topic", metavar="NAME", help="A topic; * for all."),
        click.option("--host", metavar="ADDRESS", help="Only for clients at this address."),
        click.option(
            "--operation",
            "operations",
            type=click.Choice(list(OPERATIONS), case_sensitive=False),
            cls=ListOption,
            help="Operation to allow or deny; repeatable.",
        ),
    ):
        function = option(function)
    return function


def _take_resource(given: dict[str, Any]) -> tuple[ResourceType, str | None]:
    """Take the one resource out of the options; ANY without one. Raises ConfigError for several."""
    cluster = CLUSTER_NAME if given.pop("cluster") else None
    named = [
        (ResourceType.TOPIC, given.pop("topic")),
        (ResourceType.GROUP, given.pop("group")),
        (ResourceType.TRANSACTIONAL_ID, given.pop("transactional_id")),
        (ResourceType.CLUSTER, cluster),
    ]
    found = [(resource_type, name) for resource_type, name in named if name is not None]
    if len(found) > 1:
        raise ConfigError("give one resource only: --topic, --group, --transactional-id or --cluster")
    return found[0] if found else (ResourceType.ANY, None)


@click.group("acls")
def command() -> None:
    """Add, list, load and remove ACLs.

    They are for brokers with --authorizer acl.
    """


@command.command("add")
@click.argument("principal")
@_resource_options
@click.option("--deny", is_flag=True, help="Deny the operations, even if another list allows them.")
@bootstrap_option
def add_command(
    principal: str,
    operations: tuple[str, ...],
    host: str | None,
    deny: bool,
    bootstrap: Bootstrap,
    prefixed: bool,
    **given: Any,
) -> None:
    """Allow PRINCIPAL, such as User:alice or User:*, operations on a resource, from any host by default."""
    from kafscale.client.access import create_acls

    resource_type, name = _take_resource(given)
    if name is None or not operations:
        raise ConfigError("give --operation, and one of --topic, --group, --transactional-id and --cluster")
    bindings = [
        AclBinding(
            resource_type=resource_type,
            pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
            resource_name=name,
            principal=principal,
            host=host or WILDCARD,
            operation=OPERATIONS[operation],
            permission=Permission.DENY if deny else Permission.ALLOW,
        )
        for operation in operations
    ]
    run_with_client(bootstrap, lambda client: create_acls(client, bindings))


@command.command("list")
@click.option("--principal", metavar="TYPE:NAME", help="Only lists of this principal itself.")
@_resource_options
@json_option
@with_client
async def list_command(client: Client, as_json: bool, **given: Any) -> None:
    """List all ACLs, or those that apply to a resource, including prefixes and *."""
    from kafscale.client.access import list_acls

    filters = _filters(given, pattern_type=PatternType.MATCH)
    found = [binding for acl_filter in filters for binding in await list_acls(client, acl_filter)]
    show([*COLUMNS], _rows(found), as_json=as_json)


@command.command("load")
@click.argument("file", type=click.File())
@bootstrap_option
def load_command(file: IO[str], bootstrap: Bootstrap) -> None:
    """Add all ACLs of FILE, as `list --json` prints them; - is the standard input.

    They may come from another broker, including Apache Kafka. Existing ACLs stay.
    """
    from kafscale.client.access import create_acls

    bindings = _read_rows(file)
    run_with_client(bootstrap, lambda client: create_acls(client, bindings))
    say(f"loaded: {len(bindings):,} ACLs")


@command.command("remove")
@click.argument("principal")
@_resource_options
@json_option
@with_client
async def remove_command(client: Client, as_json: bool, **given: Any) -> None:
    """Remove the ACLs of PRINCIPAL, or those of a resource, an operation or a host."""
    from kafscale.client.access import delete_acls

    filters = _filters(given, pattern_type=PatternType.LITERAL)
    removed = [binding for acl_filter in filters for binding in await delete_acls(client, acl_filter)]
    if not removed:
        raise NotFound(f"{given['principal']} has no such ACL; see `kafscale acls list`")
    if as_json:
        show([*COLUMNS], _rows(removed), as_json=True)
        return
    for binding in removed:
        say(f"removed: {binding}")


def _filters(given: dict[str, Any], *, pattern_type: PatternType) -> Sequence[AclFilter]:
    """Return a filter for each operation. `pattern_type` is for a name without --prefixed."""
    resource_type, name = _take_resource(given)
    if given["prefixed"]:
        pattern_type = PatternType.PREFIXED
    elif name is None:
        pattern_type = PatternType.ANY
    return [
        AclFilter(
            resource_type=resource_type,
            resource_name=name,
            pattern_type=pattern_type,
            principal=given["principal"],
            host=given["host"],
            operation=operation,
        )
        for operation in [OPERATIONS[word] for word in given["operations"]] or [AclOperation.ANY]
    ]


def _read_rows(file: IO[str]) -> list[AclBinding]:
    try:
        rows = json.load(file)
        if not isinstance(rows, list):
            raise ValueError("not an array")
        return [_binding(row) for row in rows]
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        reason = f"{type(exc).__name__}: {exc}"
        raise ConfigError(f"{file.name}: this is not the output of `kafscale acls list --json` ({reason})") from exc


def _binding(row: dict[str, str]) -> AclBinding:
    """Raises KeyError for an unknown column or word."""
    given: dict[str, Any] = {}
    for column, word in row.items():
        field, codes = COLUMNS[column]
        given[field] = word if codes is None else codes[word.upper().replace("-", "_")]
    return AclBinding(**given)


def _rows(bindings: Sequence[AclBinding]) -> list[tuple[str, ...]]:
    return sorted(tuple(_word(getattr(binding, field)) for field, _ in COLUMNS.values()) for binding in bindings)
