"""Groups and committed offsets as earlier versions kept them: entries of the metadata store.

    groups/<group id>/group                        a GroupRecord; none for a group that only ever committed offsets
    groups/<group id>/offsets/<topic>/<partition>  an OffsetAndMetadata
    groups/<MOVED>                                 all that was here is in `__consumer_offsets`

Ids may be any text; percent-encoding keeps them within their part of the key. An earlier version that finds the last
one does not start: it says that this is not a key of a group, and the key says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote

import attrs

from kafscale.cluster.groups.common.records import GroupRecord, OffsetAndMetadata, TopicPartition
from kafscale.cluster.metadata.base import Entry
from kafscale.cluster.metadata.converter import decode
from kafscale.errors import DamagedObject

PREFIX: Final = "groups/"
MOVED_KEY: Final = f"{PREFIX}are in __consumer_offsets: a newer KafScale is needed"


@attrs.define(eq=False, repr=False)
class FormerGroup:
    """A group as it was kept."""

    record: GroupRecord | None = None
    offsets: dict[TopicPartition, OffsetAndMetadata] = attrs.field(factory=dict)


def read_groups(entries: Iterable[Entry]) -> Mapping[str, FormerGroup]:
    """Return the groups by id. Raises DamagedObject."""
    groups: dict[str, FormerGroup] = {}
    for entry in entries:
        try:
            _take(entry, groups)
        except (ValueError, DamagedObject) as exc:
            raise DamagedObject(f"metadata key {entry.key!r}: {exc}") from exc
    return groups


def _take(entry: Entry, groups: dict[str, FormerGroup]) -> None:
    match entry.key.split("/"):
        case ["groups", group_id, "group"]:
            groups.setdefault(unquote(group_id), FormerGroup()).record = decode(GroupRecord, entry.value)
        case ["groups", group_id, "offsets", topic, partition]:
            at = TopicPartition(unquote(topic), int(partition))
            groups.setdefault(unquote(group_id), FormerGroup()).offsets[at] = decode(OffsetAndMetadata, entry.value)
        case _:
            raise ValueError("not a key of a group")
