"""Makes pages of docs/reference, such as that of the protocol: `python -m tests.docs.reference_pages` writes them.

A test holds each page to the code, and the table of APIs with `NOT_SERVED` to all calls of Kafka's brokers. Calls that
are not served are not advertised, so that clients fall back, or say that the broker does not support them.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from kafscale.api.handling.calls import Api
from kafscale.api.handling.operations import OPERATIONS, RightCheck
from kafscale.api.table import every_api
from kafscale.cluster.registries.config_definitions import ConfigDefinition
from kafscale.cluster.registries.dynamic_configs import DYNAMIC_CONFIGS
from kafscale.cluster.registries.topic_configs import TOPIC_CONFIGS
from tests.docs.cli_page import cli_page
from tests.docs.log_events_page import log_events_page
from tests.docs.metrics_page import metrics_page


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

Made by `python -m tests.docs.reference_pages`. Each module of `kafscale/api` lists what each version brought.

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


def topic_configs_page() -> str:
    rows = [
        f"| `{d.name}` | {d.type.name.lower()} | {_shown(d.default)} | {_valid_values(d)} | "
        f"{'yes' if d.acts else 'no'} | {d.documentation} |"
        for d in TOPIC_CONFIGS.values()
    ]
    return "\n".join([_TOPIC_CONFIGS, *rows, ""])


_TOPIC_CONFIGS = """\
# Topic configs

Every topic config of Kafka 4.1 can be set, is checked as Kafka checks it, and is listed by DescribeConfigs as the
value that it means (`100000` for ` +100000 `). The column *acts* says which of them change what KafScale does today;
the others are kept for the day when they do. Three defaults are the broker's: `max.message.bytes`
(`--max-message-bytes`), `segment.bytes` (`--segment-bytes`) and `file.delete.delay.ms` (`--segment-delete-delay`). All
defaults can be [changed at run time](broker-configs.md).

This page is made from `kafscale/cluster/registries/topic_configs.py`; a test holds it to the code.

| name | type | Kafka's default | values | acts | what it is |
|---|---|---|---|---|---|"""


def _shown(default: str | None) -> str:
    return f"`{default}`" if default else "empty"


def _valid_values(definition: ConfigDefinition) -> str:
    if definition.allowed:
        return ", ".join(f"`{value}`" for value in definition.allowed)
    if definition.item_pattern is not None:
        return "`*`, or `PARTITION:BROKER,…`"
    if definition.most != math.inf:
        return f"{definition.least} to {definition.most}"
    return "" if definition.least == -math.inf else f"at least {definition.least}"


def broker_configs_page() -> str:
    topic_configs = {definition.broker_name: definition.name for definition in TOPIC_CONFIGS.values()}
    rows = []
    for name, definition in sorted(DYNAMIC_CONFIGS.items()):
        topic = topic_configs.get(name)
        documentation = definition.documentation if topic is None else f"The default of topics' `{topic}`."
        acts = "yes" if definition.acts else "no"
        rows.append(
            f"| `{name}` | {definition.type.name.lower()} | {_valid_values(definition)} | {acts} | {documentation} |"
        )
    return "\n".join([_BROKER_CONFIGS, *rows, ""])


_BROKER_CONFIGS = """\
# Broker configs at run time

AlterConfigs and IncrementalAlterConfigs set these configs on one broker, or on all brokers (a resource without a name;
`kafka-configs.sh --entity-default`), as in Kafka 4.1. They are kept in the metadata, hold from the answer on and after
a restart, and DescribeConfigs tells them as DYNAMIC_BROKER_CONFIG and DYNAMIC_DEFAULT_BROKER_CONFIG. What is set on a
broker goes before what is set on all, and that before the options that the broker was started with. The column *acts*
says which of them change what KafScale does; the others are kept and told, since tools set them. Kafka's configs of
listeners, TLS and SASL can't be set at run time, and neither can any config that is not in this list.

With `--processes` each process is a broker with an id of its own, and has its own `max.connections`.

This page is made from `kafscale/cluster/registries/dynamic_configs.py`; a test holds it to the code.

| name | type | values | acts | what it is |
|---|---|---|---|---|"""


PAGES: Mapping[str, Callable[[], str]] = {
    "protocol.md": protocol_page,
    "topic-configs.md": topic_configs_page,
    "broker-configs.md": broker_configs_page,
    "metrics.md": metrics_page,
    "log-events.md": log_events_page,
    "cli.md": cli_page,
}
FOLDER = Path(__file__).parents[2] / "docs" / "reference"

if __name__ == "__main__":
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make())
