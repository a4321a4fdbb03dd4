"""Statements about topics that Spark does not have, answered from the bucket's listing: no record is read.

SHOW TOPICS [LIKE 'pattern']         names; * and | in the pattern as in SHOW TABLES
SHOW PARTITIONS FROM topic           offsets, segments and bytes

They are rows of no engine: each has its own way to show them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import attrs

from kafscale.errors import QueryError
from kafscale.spark.sql.bucket_topics import BucketTopics
from kafscale.spark.sql.tokens import Token, tokenize

TOPIC_COLUMNS = {"topic": "STRING"}
PARTITION_COLUMNS = {
    "partition": "INT",
    "start_offset": "BIGINT",
    "end_offset": "BIGINT",
    "segments": "INT",
    "bytes": "BIGINT",
}


@attrs.frozen(kw_only=True)
class Rows:
    """Rows, and the types of their columns by Spark's names."""

    types: Mapping[str, str]
    rows: Sequence[tuple[Any, ...]]


def answer(statement: str, topics: BucketTopics) -> Rows | None:
    """None if it is not one of these. Raises ConfigError, QueryError, StoreError."""
    tokens = [token for token in tokenize(statement) if token.text != ";"]
    words = [token.word for token in tokens]
    if words[:2] == ["SHOW", "TOPICS"]:
        return _show_topics(tokens[2:], topics)
    if words[:2] == ["SHOW", "PARTITIONS"] and words[2:3] in (["FROM"], ["IN"]):
        return _show_partitions("".join(token.name for token in tokens[3:]), topics)
    return None


def _show_topics(rest: Sequence[Token], topics: BucketTopics) -> Rows:
    pattern = rest[-1].text.strip("'\"").lower() if rest else "*"
    if rest and [token.word for token in rest[:-1]] not in ([], ["LIKE"]):
        raise QueryError(f"SHOW TOPICS {rest[0].text}: allowed: SHOW TOPICS, or SHOW TOPICS LIKE 'pattern*'")
    names = [name for name in topics.names() if any(fnmatchcase(name.lower(), each) for each in pattern.split("|"))]
    return Rows(types=TOPIC_COLUMNS, rows=[(name,) for name in names])


def _show_partitions(topic: str, topics: BucketTopics) -> Rows:
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
    return Rows(types=PARTITION_COLUMNS, rows=rows)
