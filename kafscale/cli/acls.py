"""`kafscale acls add|list|load|remove`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import IO, TYPE_CHECKING, Any, TypeVar

import attrs
import click

from kafscale.cli.options import Bootstrap, ListOption, bootstrap_option, json_option, run_with_client
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

Code = TypeVar("Code", bound=IntEnum)

OPERATIONS = {each.name.lower().replace("_", "-"): each for each in AclOperation if each >= AclOperation.ALL}


@attrs.frozen(kw_only=True)
class AclRow:
    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str

    @classmethod
    def of(cls, binding: AclBinding) -> AclRow:
        return cls(
            resource=_word(binding.resource_type),
            name=binding.resource_name,
            pattern=_word(binding.pattern_type),
            principal=binding.principal,
            host=binding.host,
            operation=_word(binding.operation),
            permission=_word(binding.permission),
        )

    def binding(self) -> AclBinding:
        """The list that the row shows. Raises KeyError for a word that is none of Kafka's."""
        return AclBinding(
            resource_type=_code(ResourceType, self.resource),
            pattern_type=_code(PatternType, self.pattern),
            resource_name=self.name,
            principal=self.principal,
            host=self.host,
            operation=_code(AclOperation, self.operation),
            permission=_code(Permission, self.permission),
        )


def _word(code: IntEnum) -> str:
    return code.name.lower().replace("_", "-")


def _code(codes: type[Code], word: str) -> Code:
    return codes[word.upper().replace("-", "_")]


@attrs.frozen(kw_only=True)
class Resource:
    """The one resource that options name; type ANY if they name none."""

    type: ResourceType
    name: str | None

    @classmethod
    def taken(cls, options: dict[str, Any]) -> Resource:
        """Take it out of the options. Raises ConfigError for more than one."""
        topic, group = options.pop("topic"), options.pop("group")
        transactional_id, cluster = options.pop("transactional_id"), options.pop("cluster")
        named = [
            cls(type=resource_type, name=name)
            for resource_type, name in (
                (ResourceType.TOPIC, topic),
                (ResourceType.GROUP, group),
                (ResourceType.TRANSACTIONAL_ID, transactional_id),
                (ResourceType.CLUSTER, CLUSTER_NAME if cluster else None),
            )
            if name is not None
        ]
        if len(named) > 1:
            raise ConfigError("--topic: is not the only resource; allowed: one of --topic, --group, "
                              "--transactional-id and --cluster")  # fmt: skip
        return named[0] if named else cls(type=ResourceType.ANY, name=None)


def _resource_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that name a resource and how its name is meant."""
    for option in (
        click.option("--prefixed", is_flag=True, help="The name is the beginning of names."),
        click.option("--cluster", is_flag=True, help="The cluster itself."),
        click.option("--transactional-id", metavar="ID", help="A transactional id; * for all."),
        click.option("--group", metavar="NAME", help="A consumer group; * for all."),
        click.option("--topic", metavar="NAME", help="A topic; * for all."),
    ):
        function = option(function)
    return function


def _entry_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that narrow down to whom a list says what."""
    for option in (
        click.option("--host", metavar="ADDRESS", help="From this address of a client only."),
        click.option(
            "--operation",
            "operations",
            type=click.Choice(list(OPERATIONS), case_sensitive=False),
            cls=ListOption,
            help="What is allowed or denied; repeatable.",
        ),
    ):
        function = option(function)
    return function


@click.group("acls")
def command() -> None:
    """Add, list and remove access control lists, of a broker with --authorizer acl."""


@command.command("add")
@click.argument("principal")
@_entry_options
@_resource_options
@click.option("--deny", is_flag=True, help="Deny it, whatever else is allowed.")
@bootstrap_option
def add_command(
    principal: str, operations: tuple[str, ...], host: str | None, deny: bool, bootstrap: Bootstrap, **options: Any
) -> None:
    """Allow PRINCIPAL, such as User:alice or User:*, operations on a resource, from any host unless one is given."""
    prefixed: bool = options.pop("prefixed")
    resource = Resource.taken(options)
    if resource.name is None or not operations:
        raise ConfigError("--operation: is missing, or a resource is; allowed: operations, and one of --topic, "
                          "--group, --transactional-id and --cluster")  # fmt: skip
    bindings = [
        AclBinding(
            resource_type=resource.type,
            pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
            resource_name=resource.name,
            principal=principal,
            host=host or WILDCARD,
            operation=OPERATIONS[operation],
            permission=Permission.DENY if deny else Permission.ALLOW,
        )
        for operation in operations
    ]

    async def use(client: Client) -> None:
        from kafscale.client.access import create_acls

        await create_acls(client, bindings)

    run_with_client(bootstrap, use)


@command.command("list")
@click.option("--principal", metavar="TYPE:NAME", help="Only what is said to this principal itself.")
@_entry_options
@_resource_options
@bootstrap_option
@json_option
def list_command(bootstrap: Bootstrap, as_json: bool, **options: Any) -> None:
    """List what there is; of a resource that is named all that acts on it, by prefixes and * too."""
    wanted = _filters(options, pattern_type=PatternType.MATCH)

    async def use(client: Client) -> None:
        from kafscale.client.access import list_acls

        found = [binding for each in wanted for binding in await list_acls(client, each)]
        show(AclRow, _rows(found), as_json=as_json)

    run_with_client(bootstrap, use)


@command.command("load")
@click.argument("file", type=click.File())
@bootstrap_option
def load_command(file: IO[str], bootstrap: Bootstrap) -> None:
    """Add all that FILE has, as `list --json` prints it; - is the standard input.

    What is listed may be another broker's, also Apache Kafka's. What is there already stays.
    """
    bindings = _read_rows(file)

    async def use(client: Client) -> None:
        from kafscale.client.access import create_acls

        await create_acls(client, bindings)
        say(f"loaded: {len(bindings):,} ACLs")

    run_with_client(bootstrap, use)


@command.command("remove")
@click.argument("principal")
@_entry_options
@_resource_options
@bootstrap_option
@json_option
def remove_command(principal: str, bootstrap: Bootstrap, *, as_json: bool, **options: Any) -> None:
    """Remove what is said to PRINCIPAL, of a resource, an operation or a host only where they are given."""
    wanted = _filters({"principal": principal, **options}, pattern_type=PatternType.LITERAL)

    async def use(client: Client) -> None:
        from kafscale.client.access import delete_acls

        gone = [binding for each in wanted for binding in await delete_acls(client, each)]
        if not gone:
            raise NotFound(f"{principal}: there is no such ACL; `kafscale acls list` tells which there are")
        if as_json:
            show(AclRow, _rows(gone), as_json=True)
            return
        for binding in gone:
            say(f"removed: {binding}")

    run_with_client(bootstrap, use)


def _filters(options: dict[str, Any], *, pattern_type: PatternType) -> Sequence[AclFilter]:
    """A filter for each operation that is given. `pattern_type` is how a name is meant that is given without more."""
    prefixed: bool = options.pop("prefixed")
    operations: Sequence[str] = options.pop("operations")
    resource = Resource.taken(options)
    if resource.name is None:
        pattern_type = PatternType.ANY
    return [
        AclFilter(
            resource_type=resource.type,
            resource_name=resource.name,
            pattern_type=PatternType.PREFIXED if prefixed else pattern_type,
            principal=options["principal"],
            host=options["host"],
            operation=operation,
        )
        for operation in [OPERATIONS[each] for each in operations] or [AclOperation.ANY]
    ]


def _read_rows(file: IO[str]) -> list[AclBinding]:
    """Read what `list --json` has printed. Raises ConfigError."""
    try:
        rows = json.load(file)
        if not isinstance(rows, list):
            raise ValueError("it is no array")
        return [AclRow(**row).binding() for row in rows]
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        reason = f"{type(exc).__name__}: {exc}"
        raise ConfigError(f"{file.name}: is not what `kafscale acls list --json` prints ({reason})") from exc


def _rows(bindings: Sequence[AclBinding]) -> list[AclRow]:
    return sorted(map(AclRow.of, bindings), key=attrs.astuple)
