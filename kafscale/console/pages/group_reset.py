"""Reset of a group's offsets: a preview, in which single offsets can be edited, and then the change."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

import attrs
from starlette.datastructures import FormData
from starlette.responses import Response
from starlette.routing import Route

from kafscale.client.groups import TopicPartition, commit_offsets, committed_offsets, describe_group
from kafscale.client.resetting import Target, all_partitions, target_offsets, within_logs
from kafscale.console.pages.base import PageRequest, action, view
from kafscale.console.pages.fields import time_ms, whole_number
from kafscale.console.pages.groups import why_fixed
from kafscale.errors import ConfigError, KafkaError
from kafscale.security.acls import AclOperation
from kafscale.wire.error_codes import GROUP_ID_NOT_FOUND

EARLIEST, LATEST, TIME, OFFSET, EXACT = "earliest", "latest", "time", "offset", "exact"
FIELD = "offset/"  # and topic, "/" and partition
PARTITIONS_MAX_COUNT = 5_000  # of one form


@attrs.frozen(kw_only=True)
class OffsetChange:
    """One offset of the preview."""

    place: TopicPartition
    before: int | None
    after: int

    @property
    def field(self) -> str:
        return f"{FIELD}{self.place.topic}/{self.place.partition}"


async def preview(page: PageRequest) -> Response:
    """Show what a reset would change."""
    client, name = await page.client(), page.argument("group")
    before = await committed_offsets(client, name)
    topic = page.argument("topic")
    topics = {topic} if topic else {place.topic for place in before}
    if not topics:
        raise ConfigError(f"group '{name}' has no committed offsets: name a topic")
    wanted = await all_partitions(client, topics)
    if len(wanted) > PARTITIONS_MAX_COUNT:
        raise ConfigError(f"{len(wanted)} partitions are too many for one form ({PARTITIONS_MAX_COUNT}): name a topic")
    if page.argument("to") == EXACT:
        after = await within_logs(client, {place: before.get(place, 0) for place in wanted})
    else:
        after = await target_offsets(client, wanted, before, _target(page))
    return page.render(
        "group_reset.html",
        name=name,
        changes=[OffsetChange(place=place, before=before.get(place), after=after[place]) for place in wanted],
        missing=await _missing(page, name),
    )


def _target(page: PageRequest) -> Target:
    """Read the wanted position. Raises ConfigError."""
    kind, value = page.argument("to"), page.argument("value").strip()
    if kind in (EARLIEST, LATEST):
        return Target(earliest=kind == EARLIEST, latest=kind == LATEST)
    if kind == TIME:
        return Target(time_ms=time_ms(page.argument("time")))
    if kind == OFFSET:
        return Target(offset=whole_number(value, "offset"))
    raise ConfigError(f"'{kind[:50]}' is not a known target: choose earliest, latest, time, offset or exact")


async def _missing(page: PageRequest, name: str) -> str:
    """Return why the user can't reset the group; the first offsets of a group need none yet."""
    try:
        described = await describe_group(await page.client(), name)
    except KafkaError as exc:
        if exc.code != GROUP_ID_NOT_FOUND:
            raise
        return ""
    return why_fixed(described, AclOperation.READ, name)


async def reset(page: PageRequest) -> Response:
    """Commit the previewed offsets, if all of them are within their logs."""
    client, name = await page.client(), page.argument("group")
    wanted = _wanted(page.form)
    allowed = await within_logs(client, wanted)
    for place, offset in wanted.items():
        if allowed[place] != offset:
            raise ConfigError(
                f"offset {offset} is not in the log of {place.topic}-{place.partition}; the nearest is {allowed[place]}"
            )
    await commit_offsets(client, name, wanted)
    return page.redirect(f"/groups/one?{urlencode({'group': name})}", f"Offsets are reset: {len(wanted)}.")


def _wanted(form: FormData) -> Mapping[TopicPartition, int]:
    wanted = {}
    for field, value in form.multi_items():
        if field.startswith(FIELD):
            topic, _, partition = field.removeprefix(FIELD).rpartition("/")
            wanted[TopicPartition(topic, whole_number(partition, "partition"))] = whole_number(
                str(value).strip(), "offset"
            )
    if not wanted:
        raise ConfigError("the form has no offsets: choose what to reset")
    return wanted


ROUTES = [
    Route("/groups/reset", view(preview)),
    Route("/groups/reset", action(reset), methods=["POST"]),
]
