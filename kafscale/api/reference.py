"""The reference page of the protocol, made from the table of APIs, what it lacks, and the docstring of each module.

    python -m kafscale.api.reference > docs/reference/protocol.md

A test holds the committed page to the code.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType

from kafscale.api.handling.calls import Api
from kafscale.api.handling.operations import OPERATIONS, Check
from kafscale.api.not_served import NOT_SERVED, NotServed
from kafscale.api.table import APIS, every_api
from kafscale.wire.schema import MAX

_INTRODUCTION = """\
# The protocol that the broker speaks

Made by `python -m kafscale.api.reference`; what is changed are the modules in `kafscale/api/`.

Every version is spoken in both encodings, the flexible one from the version named on (KIP-482). What is not in this
table is not advertised: a request of an unknown key or version ends the connection, as in Kafka. An unknown version of
ApiVersions is answered in version 0 with UNSUPPORTED_VERSION and this list (KIP-511).

| key | API | versions | flexible from |
|---|---|---|---|
"""

_NOT_SERVED = """
## Not served

These calls of Kafka 4.1's brokers are not advertised. Those of its controllers among themselves have no meaning here.

| keys | APIs | why |
|---|---|---|
"""


_OPERATIONS = """
## What each API asks the authorizer

Where there are [access control lists](../how-to/allow-and-deny.md), these are the rights that a client needs, as in
Kafka. Clients without one get the error for that resource: for all of the request, or for the elements of the array
that is named.

| API | right | of | note |
|---|---|---|---|
"""


def protocol_page() -> str:
    """The whole page, as Markdown."""
    rows = sorted(every_api(), key=lambda api: api.key)
    modules = [import_module(f"kafscale.api.{each.module}") for each in sorted(APIS, key=lambda api: api.key)]
    table = "".join(
        f"| {api.key} | {api.name} | {api.min_version}-{api.max_version} | {_flexible_since(api)} |\n" for api in rows
    )
    not_served = _NOT_SERVED + "".join(map(_not_served, NOT_SERVED))
    operations = _OPERATIONS + "".join(_check(api.name, check) for api in rows for check in OPERATIONS[api.name])
    return _INTRODUCTION + table + not_served + operations + "".join(map(_section, modules))


def _flexible_since(api: Api) -> str:
    since: int = api.request.FLEXIBLE_SINCE  # type: ignore[attr-defined]
    return str(since) if since <= MAX else "never"


def _not_served(calls: NotServed) -> str:
    return f"| {', '.join(map(str, calls.names))} | {', '.join(calls.names.values())} | {calls.reason} |\n"


def _check(api: str, check: Check) -> str:
    of = f"`{check.each}`" if check.each else "by its handler" if check.by_handler else "the whole request"
    note = check.note or (f"or {check.unless}" if check.unless is not None else "")
    if check.versions.start:
        note = f"from version {check.versions.start} on"
    return f"| {api} | {check.right} | {of} | {note} |\n"


def _section(module: ModuleType) -> str:
    return f"\n## {module.API.name}\n\n```\n{inspect.getdoc(module)}\n```\n"


if __name__ == "__main__":
    print(protocol_page(), end="")
