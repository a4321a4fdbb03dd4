"""Acknowledged record batches of the local log that a start can't put back, kept for the user in copies of their files.

    superseded   another broker has written their offsets since
    unknown      the metadata does not know their topic or partition, and the topic was not deleted:
                 `metadata.db` was lost, or is an older copy

Only this data directory has them. `kafscale adopt` gives back those of topics that are unknown.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import attrs

from kafscale.errors import StorageFull
from kafscale.formats.wal_entries import WalEntry, WalFile
from kafscale.store.paths import topic_id_text

KEPT_PREFIX = "superseded-"  # of the copy of a file, which no replay looks at
TOPICS_TOLD_MAX_COUNT = 10  # in one line of the log

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class KeptAside:
    """Counts of record batches that a replay did not put back, by file, and `unknown` ones by the id of their topic."""

    superseded: Counter[WalFile] = attrs.field(factory=Counter, init=False)
    unknown: Counter[tuple[WalFile, bytes]] = attrs.field(factory=Counter, init=False)

    @property
    def files(self) -> list[WalFile]:
        """The files that have such batches, in the order of the log."""
        found = {*self.superseded, *(file for file, _ in self.unknown)}
        return sorted(found, key=lambda file: file.header.number)

    def add_superseded(self, entry: WalEntry) -> None:
        """Count a batch whose offsets another broker has written."""
        assert entry.file is not None
        self.superseded[entry.file] += 1

    def add_unknown(self, entry: WalEntry) -> None:
        """Count a batch of a topic or partition that the metadata does not know."""
        assert entry.file is not None
        self.unknown[entry.file, entry.topic_id] += 1

    def forget(self, file: WalFile) -> None:
        """Leave out what a file has: the user knows of it, or will be told by a later start."""
        self.superseded.pop(file, None)
        for key in [key for key in self.unknown if key[0] is file]:
            del self.unknown[key]


def kept_name(file: WalFile) -> str:
    """Return the name of the copy of a file."""
    return f"{KEPT_PREFIX}{file.name}"


async def keep_copies(
    kept: KeptAside,
    keep_copy: Callable[[WalFile], Awaitable[bool]],
    location: str,
    topic_names: Mapping[bytes, str],
) -> None:
    """Copy these files, and tell the user of those that are new; the others are taken out. Raises StorageFailed.

    `keep_copy` tells whether there was no copy yet; it raises StorageFull where there is no room for one.
    `topic_names` are those that the log has told.
    """
    for file in kept.files:
        try:
            is_new = await keep_copy(file)
        except StorageFull as exc:
            logger.error(
                "%s, which has acknowledged record batches that are not in the log: it stays in the write-ahead log, "
                "and all files behind it, until a start finds room for the copy",
                exc,
            )
            is_new = False
        if not is_new:
            kept.forget(file)  # an earlier start has kept it and told so, or a later one will
    if kept.superseded:
        logger.error(
            "%d record batches that were acknowledged here are not in the log: another broker has taken over and "
            "written the same partitions; they are kept in %s of %s: see `kafscale inspect --batches`",
            kept.superseded.total(),
            ", ".join(map(kept_name, sorted(kept.superseded, key=lambda file: file.header.number))),
            location,
        )
    if kept.unknown:
        logger.error(
            "%d record batches that were acknowledged here are not in the log, as the metadata does not know their "
            "topics: %s. Their metadata.db was lost, or an older copy of it is in its place. They are kept in %s of "
            "%s: stop the broker and run `kafscale adopt`, which creates the topics anew and gives the records back",
            kept.unknown.total(),
            _topics_text(kept, topic_names),
            ", ".join(dict.fromkeys(kept_name(file) for file, _ in kept.unknown)),
            location,
        )


def _topics_text(kept: KeptAside, topic_names: Mapping[bytes, str]) -> str:
    counts: Counter[bytes] = Counter()
    for (_, topic_id), count in kept.unknown.items():
        counts[topic_id] += count
    told = [
        f"{topic_names.get(topic_id, 'name unknown')} ({topic_id_text(topic_id)}): {count}"
        for topic_id, count in counts.most_common(TOPICS_TOLD_MAX_COUNT)
    ]
    more = len(counts) - len(told)
    return ", ".join(told) + (f", and {more} more" if more else "")
