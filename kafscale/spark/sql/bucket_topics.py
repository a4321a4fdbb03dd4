"""The topics of a bucket for statements of either engine, and the commands about them.

SHOW TOPICS [LIKE 'pattern']         names; * and | in the pattern as in SHOW TABLES
SHOW PARTITIONS FROM topic           offsets, segments and bytes

A listing answers these commands; no record is read.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from typing import Any

import attrs

from kafscale.errors import QueryError
from kafscale.spark.bucket.catalog import PartitionLog
from kafscale.spark.bucket.position import some_of
from kafscale.spark.source.options import Given, ReadOptions
from kafscale.spark.source.planning import Planner
from kafscale.spark.sql.clauses import Bound
from kafscale.spark.sql.tails import tail_offsets
from kafscale.spark.sql.tokens import SqlToken, tokenize
from kafscale.store.paths import topic_name_prefix

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")  # Kafka's rule


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BucketTopics:
    """The topics of a bucket.

    options: of `format("kafscale")`, without those that say what to read. `clock` is in seconds.
    """

    options: Mapping[str, str]
    max_scan_bytes: int | None = None
    clock: Callable[[], float] = time.time

    def names(self) -> Sequence[str]:
        """Return the names of all topics, in order. Raises ConfigError, StoreError."""
        with closing(self.planner()) as planner:
            return planner.catalog.topics()

    def has(self, name: str) -> bool:
        """Tell whether a topic has objects in the bucket, or is known to be empty. Raises ConfigError, StoreError."""
        with closing(self.planner()) as planner:
            if planner.catalog.brokers is not None:
                return name in planner.catalog.topics()
            prefix = topic_name_prefix(name, namespace=planner.options.namespace)
            is_listed = next(iter(planner.catalog.bucket.list(prefix)), None) is not None
            return is_listed or name in planner.catalog.metadata.topics

    def logs(self, topic: str) -> Mapping[int, PartitionLog]:
        """Return the partitions of a topic as of now. Raises ConfigError, StoreError."""
        with closing(self.planner()) as planner:
            return planner.catalog.partitions(topic)

    def reading(
        self, topic: str, bound: Bound, *, partition: int | None = None, options: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return the options to read one reference to a topic. Raises ConfigError, QueryError, StoreError.

        partition: read the tail of this partition alone. options: for this reference alone.
        """
        what = {"subscribe": topic} if bound.tail_count is None else self._tail(topic, bound.tail_count, partition)
        return {**self.options, **self._limit(bound), **what, **(options or {})}

    def no_such(self, name: str) -> QueryError:
        """Return the error for an unknown topic, which names existing ones."""
        told = some_of(self.names(), near_to=name, label="topics")
        return QueryError(
            f"there is no topic, table or view '{name}' ({told}). Check the name, --store and --namespace; records "
            "that were just produced come into the bucket by `kafscale flush`, and a new topic within 10 s"
        )

    def planner(self) -> Planner:
        """Open a planner, which the caller closes. Raises ConfigError."""
        return Planner.of(ReadOptions.of(Given({**self.options, "subscribePattern": ".*"})))

    def _limit(self, bound: Bound) -> dict[str, str]:
        if self.max_scan_bytes is None or bound.is_full:
            return {}
        return {"maxScanBytes": str(self.max_scan_bytes)}

    def _tail(self, topic: str, count: int, partition: int | None) -> dict[str, str]:
        with closing(self.planner()) as planner:
            starts = tail_offsets(planner.catalog, topic, count, partition)
        if not starts:
            raise QueryError(f"topic '{topic}' has no partition {partition} in the bucket")
        return {
            "assign": json.dumps({topic: list(starts)}),
            "startingOffsets": json.dumps({topic: {str(index): start for index, start in starts.items()}}),
        }


TOPIC_COLUMNS = {"topic": "STRING"}
PARTITION_COLUMNS = {
    "partition": "INT",
    "start_offset": "BIGINT",
    "end_offset": "BIGINT",
    "segments": "INT",
    "bytes": "BIGINT",
}


@attrs.frozen(kw_only=True)
class CommandRows:
    """Rows of a command, and the types of their columns by Spark's names."""

    types: Mapping[str, str]
    rows: Sequence[tuple[Any, ...]]


def answer_command(statement: str, topics: BucketTopics) -> CommandRows | None:
    """Answer a command about topics; None for any other statement. Raises ConfigError, QueryError, StoreError."""
    tokens = [token for token in tokenize(statement) if token.text != ";"]
    words = [token.word for token in tokens]
    if words[:2] == ["SHOW", "TOPICS"]:
        return _show_topics(tokens[2:], topics)
    if words[:2] == ["SHOW", "PARTITIONS"] and words[2:3] in (["FROM"], ["IN"]):
        return _show_partitions("".join(token.name for token in tokens[3:]), topics)
    return None


def _show_topics(rest: Sequence[SqlToken], topics: BucketTopics) -> CommandRows:
    pattern = rest[-1].text.strip("'\"").lower() if rest else "*"
    if rest and [token.word for token in rest[:-1]] not in ([], ["LIKE"]):
        raise QueryError(f"SHOW TOPICS {rest[0].text}: allowed: SHOW TOPICS, or SHOW TOPICS LIKE 'pattern*'")
    names = [name for name in topics.names() if any(fnmatchcase(name.lower(), part) for part in pattern.split("|"))]
    return CommandRows(types=TOPIC_COLUMNS, rows=[(name,) for name in names])


def _show_partitions(topic: str, topics: BucketTopics) -> CommandRows:
    logs = topics.logs(topic)
    if not logs:
        raise topics.no_such(topic)
    rows = [
        (
            index,
            log.start_offset,
            log.end_offset,
            len(log.segments),
            sum(segment.size_bytes for segment in log.segments),
        )
        for index, log in logs.items()
    ]
    return CommandRows(types=PARTITION_COLUMNS, rows=rows)
