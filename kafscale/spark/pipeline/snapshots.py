"""What a table's commits, Iceberg's snapshots, tell of the micro-batches that made them.

Each has in its summary the mapping, Spark's id of the query, the number of the batch, the offsets where it ended and
the ids of the topics that they are of, which those of earlier versions lack. Later ones have besides where the batch
began, where the mapping began, and CRCs of segments, for `kafscale pipeline prove`.
Those that compaction makes have none, so the newest that has them is looked for among the ancestors of the current one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol

import attrs

from kafscale.spark.bucket.digests import Digest
from kafscale.spark.bucket.position import Position, TopicPartition

MAPPING = "kafscale.mapping"
QUERY_ID = "kafscale.query-id"
BATCH_ID = "kafscale.batch-id"
OFFSETS = "kafscale.offsets"
TOPIC_IDS = "kafscale.topic-ids"
STARTS = "kafscale.starts"
BEGAN = "kafscale.began"
CRCS = "kafscale.crcs"
ADDED_BYTES = "added-files-size"  # by Iceberg's names, where the commit tells how much it has added
ADDED_ROWS = "added-records"

Digests = Mapping[TopicPartition, Digest]


@attrs.frozen(kw_only=True)
class Batch:
    """A micro-batch of a mapping. again: topics that its query reads again, whatever earlier ones have written."""

    mapping: str
    query_id: str
    batch_id: int
    end: Position
    start: Position = attrs.field(factory=Position)
    began: Position | None = None
    digests: Digests = attrs.field(factory=dict)
    again: Set[str] = frozenset()

    def summary(self) -> dict[str, str]:
        """Return what the summary of the batch's snapshot is to say."""
        return {
            MAPPING: self.mapping,
            QUERY_ID: self.query_id,
            BATCH_ID: str(self.batch_id),
            OFFSETS: _text(Position(offsets=self.end.offsets).to_json()),
            TOPIC_IDS: _text(self.end.topic_ids),
            STARTS: _text(Position(offsets=self.start.offsets).to_json()),
            BEGAN: "" if self.began is None else _text(self.began.to_json()),
            CRCS: _text(_nested({name: list(attrs.astuple(each)) for name, each in self.digests.items()})),
        }

    def behind(self, committed: Committed | None) -> Batch:
        """Return what of the batch a table does not have, which may have been of another query, and have got further.

        It ends where the table does if that is behind it. CRCs are of the whole batch alone.
        """
        if committed is None:
            return attrs.evolve(self, began=self.start)
        known, now = committed.end.topic_ids, self.end.topic_ids
        again: Set[str] = frozenset() if committed.query_id == self.query_id else self.again
        had = {
            (topic, index): offset
            for (topic, index), offset in committed.end.offsets.items()
            if known.get(topic) == now.get(topic, known.get(topic))
            and (topic, index) in self.end.offsets
            and topic not in again
        }
        start = {**had, **{name: max(offset, had.get(name, 0)) for name, offset in self.start.offsets.items()}}
        end = {name: max(offset, had.get(name, 0)) for name, offset in self.end.offsets.items()}
        is_whole = all(self.start.offsets.get(name, 0) == offset for name, offset in start.items())
        return attrs.evolve(
            self,
            start=attrs.evolve(self.start, offsets=start),
            end=attrs.evolve(self.end, offsets=end),
            began=committed.began,
            digests=self.digests if is_whole else {},
        )

    def anew(self, committed: Committed) -> Set[str]:
        """Return topics of an earlier batch that this one's query reads whatever that had of them: there are others of
        their names now, or a reset has them read again.
        """
        now = self.end.topic_ids
        others = {topic for topic, known in committed.end.topic_ids.items() if now.get(topic, known) != known}
        return others if committed.query_id == self.query_id else others | self.again

    def is_in(self, committed: Committed | None) -> bool:
        """Tell whether the newest snapshot of its mapping is of this batch, or of a later one of the same query."""
        return committed is not None and committed.query_id == self.query_id and committed.batch_id >= self.batch_id


class Commit(Protocol):
    """A commit that a table consists of. Its summary is asked for only where its number does not tell enough."""

    @property
    def id(self) -> int:
        """The format's number of it."""
        ...

    @property
    def parent_id(self) -> int | None:
        """The number of the commit before it."""
        ...

    @property
    def timestamp_ms(self) -> int:
        """Return when it was committed."""
        ...

    def summary(self) -> Mapping[str, str]:
        """Return what it says of the batch that made it, ADDED_BYTES and ADDED_ROWS; empty if it is no batch's."""
        ...


@attrs.frozen(kw_only=True)
class Committed:
    """A micro-batch that is in the table. depth: how many snapshots are newer.

    start, began: where it began, and where the mapping did; empty and None in those of earlier versions.
    """

    mapping: str
    query_id: str
    batch_id: int
    end: Position
    snapshot_id: int
    parent_id: int | None
    timestamp_ms: int
    depth: int
    summary: Mapping[str, str]
    start: Position = attrs.field(factory=Position)
    began: Position | None = None

    @property
    def added_bytes(self) -> int:
        """Return how large the files are that the commit has added."""
        return int(self.summary.get(ADDED_BYTES) or 0)

    @property
    def added_rows(self) -> int:
        """Return how many rows are in the files that the commit has added."""
        return int(self.summary.get(ADDED_ROWS) or 0)

    @property
    def digests(self) -> Digests:
        """Return the CRCs of what it read, as far as footers had them."""
        topics = json.loads(self.summary.get(CRCS) or "{}")
        return {
            (topic, int(index)): Digest(*values)
            for topic, partitions in topics.items()
            for index, values in partitions.items()
        }

    def is_ahead_of(self, other: Committed | None) -> bool:
        """Tell whether it is of a later batch than another of its mapping, or, of another query, ends behind it."""
        if other is None:
            return True
        if self.query_id == other.query_id:
            return self.batch_id > other.batch_id
        return any(end > other.end.offsets.get(partition, 0) for partition, end in self.end.offsets.items())


def committed_batches(commits: Iterable[Commit]) -> Iterator[Committed]:
    """Iterate over the batches among the commits of a table, newest first."""
    for depth, commit in enumerate(commits):
        committed = _committed_of(commit, depth)
        if committed is not None:
            yield committed


def _committed_of(commit: Commit, depth: int) -> Committed | None:
    summary = commit.summary()
    if not summary:
        return None
    return Committed(
        mapping=summary[MAPPING],
        query_id=summary[QUERY_ID],
        batch_id=int(summary[BATCH_ID]),
        end=attrs.evolve(Position.parse(summary[OFFSETS]), topic_ids=json.loads(summary.get(TOPIC_IDS, "{}"))),
        snapshot_id=commit.id,
        parent_id=commit.parent_id,
        timestamp_ms=commit.timestamp_ms,
        depth=depth,
        summary=summary,
        start=Position.parse(summary.get(STARTS) or "{}"),
        began=Position.parse(summary[BEGAN]) if summary.get(BEGAN) else None,
    )


@attrs.define(kw_only=True, eq=False, repr=False)
class CommitsAhead:
    """The batches of a mapping in a table that are ahead of where it was committed: of dead letters, in their table.

    What was looked at is remembered, so that each look costs as much as there is new, however many snapshots are kept.
    """

    mapping: str
    _head: int | None = attrs.field(default=None, init=False)  # the newest snapshot that was looked at
    _known: list[Committed] = attrs.field(factory=list, init=False)

    def look(self, commits: Iterable[Commit], committed: Committed | None) -> Sequence[Committed]:
        """Return what was committed since the last look, newest first.

        What `committed`, of which no later call may give an earlier one, has passed is forgotten.
        """
        head: int | None = None
        new: list[Committed] = []
        for depth, commit in enumerate(commits):
            commit_id = commit.id
            head = commit_id if head is None else head
            if commit_id == self._head:
                break
            found = _committed_of(commit, depth)
            if found is not None and found.mapping == self.mapping:
                new.append(found)
        else:
            self._known = []  # the table was rolled back, or is another one
        self._head = head
        self._known = [each for each in [*new, *self._known] if each.is_ahead_of(committed)]
        return self._known


def _nested(values: Mapping[TopicPartition, Any]) -> Mapping[str, Mapping[str, Any]]:
    topics: dict[str, dict[str, Any]] = {}
    for topic, index in sorted(values):
        topics.setdefault(topic, {})[str(index)] = values[topic, index]
    return topics


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def newest(commits: Iterable[Commit], mapping: str) -> Committed | None:
    """Return the newest batch of a mapping that is in the table of these commits."""
    return next((each for each in committed_batches(commits) if each.mapping == mapping), None)
