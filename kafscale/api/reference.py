"""The reference page of the protocol, made from the table of APIs, the missing calls, and the modules' docstrings.

    python -m kafscale.api.reference > docs/reference/protocol.md

A test holds the committed page to the code, and the table with `NOT_SERVED` to all calls of Kafka's brokers. Calls that
are not served are not advertised, so that clients fall back, or say that the broker does not support them.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence

import attrs

from kafscale.api.handling.calls import Api
from kafscale.api.handling.operations import OPERATIONS, RightCheck
from kafscale.api.table import every_api


@attrs.frozen
class NotServed:
    """Calls that are left out for the same reason; `names` is by their keys."""

    names: Mapping[int, str]
    reason: str


NOT_SERVED: Sequence[NotServed] = (
    NotServed(
        {
            38: "CreateDelegationToken",
            39: "RenewDelegationToken",
            40: "ExpireDelegationToken",
            41: "DescribeDelegationToken",
        },
        "Users have passwords, or tokens of an identity provider (OAUTHBEARER); the broker gives out none of its own.",
    ),
    NotServed(
        {71: "GetTelemetrySubscriptions", 72: "PushTelemetry"},
        "The broker collects no metrics of clients (KIP-714). Kafka serves these only with a plugin that does.",
    ),
    NotServed(
        {
            76: "ShareGroupHeartbeat",
            77: "ShareGroupDescribe",
            78: "ShareFetch",
            79: "ShareAcknowledge",
            83: "InitializeShareGroupState",
            84: "ReadShareGroupState",
            85: "WriteShareGroupState",
            86: "DeleteShareGroupState",
            87: "ReadShareGroupStateSummary",
            90: "DescribeShareGroupOffsets",
            91: "AlterShareGroupOffsets",
            92: "DeleteShareGroupOffsets",
        },
        "There are no share groups (KIP-932), which are a preview in Kafka 4.1.",
    ),
    NotServed(
        {80: "AddRaftVoter", 81: "RemoveRaftVoter"},
        "There is no quorum to which voters could be added: one broker at a time is the controller.",
    ),
    NotServed(
        {88: "StreamsGroupHeartbeat", 89: "StreamsGroupDescribe"},
        "There are no groups of Streams (KIP-1071), which are early access in Kafka 4.1; Streams uses classic groups.",
    ),
)


_INTRODUCTION = """\
# The protocol that the broker speaks

Made by `python -m kafscale.api.reference`. Each module of `kafscale/api` lists what each version brought.

A request of an unknown key or version ends the connection, as in Kafka; an unknown version of ApiVersions is answered
in version 0 with UNSUPPORTED_VERSION and this list (KIP-511). The last column has the rights that a client needs where
there are [access control lists](../how-to/allow-and-deny.md), as in Kafka.

| key | API | versions | rights |
|---|---|---|---|
"""

_NOT_SERVED = """
## Not served

These calls of Kafka 4.1's brokers are not advertised. Those of its controllers among themselves have no meaning here.

| APIs | why |
|---|---|
"""

_NOTES = """
## Notes
"""

_VERSION = re.compile(r"v\d+ ")


def protocol_page() -> str:
    """Return the page as Markdown."""
    rows = sorted(every_api(), key=lambda api: api.key)
    table = "".join(
        f"| {api.key} | {api.name} | {api.min_version}-{api.max_version} | {_rights(api)} |\n" for api in rows
    )
    not_served = _NOT_SERVED + "".join(map(_not_served, NOT_SERVED))
    return _INTRODUCTION + table + not_served + _NOTES + "".join(map(_section, rows))


def _rights(api: Api) -> str:
    return ", ".join(map(_right, OPERATIONS[api.name]))


def _right(check: RightCheck) -> str:
    note = check.note or (f"or {check.unless}" if check.unless is not None else "")
    if check.versions.start:
        note = f"from version {check.versions.start} on"
    return f"{check.right} ({note})" if note else f"{check.right}"


def _not_served(calls: NotServed) -> str:
    return f"| {', '.join(calls.names.values())} | {calls.reason} |\n"


def _section(api: Api) -> str:
    """Return the paragraphs of an API's module below its title and its versions, which are Kafka's."""
    paragraphs = (inspect.getdoc(sys.modules[api.handle.__module__]) or "").split("\n\n")[1:]
    notes = [note for note in paragraphs if not note.startswith(" ") and not _VERSION.match(note)]
    return f"\n### {api.name}\n\n" + "\n\n".join(notes) + "\n" if notes else ""


if __name__ == "__main__":
    print(protocol_page(), end="")
