"""The micro-batches in a table, by the summaries of its commits (Iceberg's snapshots).

A summary has the mapping, Spark's id of the query, the number of the batch, its end offsets and the ids of their
topics. For `kafscale pipeline prove` it has the beginning of the batch and of the mapping, and CRCs of segments.
Commits of compaction have none, so the newest batch is searched among the ancestors of the current commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import attrs

from kafscale.spark.bucket.digests import RangeDigest
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

Digests = Mapping[TopicPartition, RangeDigest]


@attrs.frozen(kw_only=True)
class MicroBatch:
    """A micro-batch of a mapping. again: topics that its query reads again, also if earlier ones have written them."""

    mapping: str
    query_id: str
    batch_id: int
    end: Position
    start: Position = attrs.field(factory=Position)
    began: Position = attrs.field(factory=Position)
    digests: Digests = attrs.field(factory=dict)
    again: Set[str] = frozenset()

    def summary(self) -> dict[str, str]:
        return {
            MAPPING: self.mapping,
            QUERY_ID: self.query_id,
            BATCH_ID: str(self.batch_id),
            OFFSETS: _text(Position(offsets=self.end.offsets).to_json()),
            TOPIC_IDS: _text(self.end.topic_ids),
            STARTS: _text(Position(offsets=self.start.offsets).to_json()),
            BEGAN: _text(self.began.to_json()),
            CRCS: _text(_nested({name: list(attrs.astuple(digest)) for name, digest in self.digests.items()})),
        }

    def behind(self, committed: Committed | None) -> MicroBatch:
        """Return the part of the batch that a table lacks, which may be of another query, and be ahead.

        It ends where the table does if that is later. CRCs are of the whole batch alone.
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
        """Return topics of an earlier batch that this query reads again: they were created again, or reset."""
        now = self.end.topic_ids
        others = {topic for topic, known in committed.end.topic_ids.items() if now.get(topic, known) != known}
        return others if committed.query_id == self.query_id else others | self.again

    def is_in(self, committed: Committed | None) -> bool:
        """Tell whether the newest snapshot of its mapping is of this batch, or of a later one of the same query."""
        return committed is not None and committed.query_id == self.query_id and committed.batch_id >= self.batch_id


@attrs.frozen(kw_only=True, eq=False)
class Commit:
    """A commit that a table consists of, by the format's numbers.

    summary: reads the summary of the batch that made it, with ADDED_BYTES and ADDED_ROWS; empty if no batch did.
    """

    id: int
    parent_id: int | None
    timestamp_ms: int
    summary: Callable[[], Mapping[str, str]]


@attrs.frozen(kw_only=True)
class Committed:
    """A micro-batch in the table. depth: the number of newer snapshots. began: the beginning of the mapping."""

    mapping: str
    query_id: str
    batch_id: int
    end: Position
    snapshot_id: int
    parent_id: int | None
    timestamp_ms: int
    depth: int
    summary: Mapping[str, str]
    start: Position
    began: Position

    @property
    def added_bytes(self) -> int:
        return int(self.summary.get(ADDED_BYTES) or 0)

    @property
    def added_rows(self) -> int:
        return int(self.summary.get(ADDED_ROWS) or 0)

    @property
    def digests(self) -> Digests:
        """Return the CRCs of its records, as far as footers had them."""
        topics = json.loads(self.summary[CRCS])
        return {
            (topic, int(index)): RangeDigest(*values)
            for topic, partitions in topics.items()
            for index, values in partitions.items()
        }

    def is_ahead_of(self, other: Committed | None) -> bool:
        """Tell whether it is a later batch of the same query than another, or, of another query, ends later."""
        if other is None:
            return True
        if self.query_id == other.query_id:
            return self.batch_id > other.batch_id
        return any(end > other.end.offsets.get(partition, 0) for partition, end in self.end.offsets.items())


def committed_batches(commits: Iterable[Commit]) -> Iterator[Committed]:
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
        end=attrs.evolve(Position.parse(summary[OFFSETS]), topic_ids=json.loads(summary[TOPIC_IDS])),
        snapshot_id=commit.id,
        parent_id=commit.parent_id,
        timestamp_ms=commit.timestamp_ms,
        depth=depth,
        summary=summary,
        start=Position.parse(summary[STARTS]),
        began=Position.parse(summary[BEGAN]),
    )


@attrs.define(kw_only=True, eq=False, repr=False)
class CommitsAhead:
    """The batches of a mapping in its dead-letter table that are ahead of its own table.

    Earlier looks are remembered, so that a look costs as much as there is new, however many snapshots are kept.
    """

    mapping: str
    _head: int | None = attrs.field(default=None, init=False)  # the newest snapshot that was looked at
    _known: list[Committed] = attrs.field(factory=list, init=False)

    def look(self, commits: Iterable[Commit], committed: Committed | None) -> Sequence[Committed]:
        """Return the batches ahead of `committed`, newest first, and forget earlier ones.

        A later call must not give an earlier `committed`.
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
        self._known = [batch for batch in [*new, *self._known] if batch.is_ahead_of(committed)]
        return self._known


def _nested(values: Mapping[TopicPartition, Any]) -> Mapping[str, Mapping[str, Any]]:
    topics: dict[str, dict[str, Any]] = {}
    for topic, index in sorted(values):
        topics.setdefault(topic, {})[str(index)] = values[topic, index]
    return topics


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def newest(commits: Iterable[Commit], mapping: str) -> Committed | None:
    return next((batch for batch in committed_batches(commits) if batch.mapping == mapping), None)
