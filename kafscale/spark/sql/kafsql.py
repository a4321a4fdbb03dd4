"""What KafScale's KAFSQL spells in another way than Spark, before Spark's parser sees it.

    JOIN payments p ON o._key = p._key WITHIN 10m     ON (…) AND p._ts BETWEEN o._ts - … AND o._ts + …
    JOIN payments p WITHIN 10m                        by the key, as there
    _ts >= 1700000000000                              _ts >= timestamp_millis(1700000000000)
    FROM orders WHERE offset IN (1, 2)                WHERE `offset` …, not an OFFSET behind the alias `where`

A statement that names one of its columns (`_key`, `_ts`, …) has them of all topics, in place of Spark's; those of Spark
that it names too are there behind them. Its functions of JSON are functions of the session (`FUNCTIONS`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from kafscale.spark.sql.edits import Edit, edited
from kafscale.spark.sql.joins import windows
from kafscale.spark.sql.segments import SEGMENT
from kafscale.spark.sql.tokens import Token, tokenize
from kafscale.spark.values.decoding import DECODED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Mapping[str, str] = {
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_ts": "timestamp",
    "_key": "key",
    "_value": "value",
    "_headers": "headers",
    "_segment": SEGMENT,
}
ASKED_FOR = ("_headers", "_segment")  # cost something, so they are there only where they are named
FUNCTIONS: Mapping[str, str] = {
    "json_value": "STRING RETURN get_json_object(document, path)",
    "json_query": "STRING RETURN to_json(try_variant_get(try_parse_json(document), path, 'variant'))",
    "json_exists": "BOOLEAN RETURN CASE WHEN try_parse_json(document) IS NOT NULL THEN "
    "try_variant_get(try_parse_json(document), path, 'variant') IS NOT NULL END",
}


def define_functions(spark: SparkSession, *, temporary: bool = True) -> None:
    """`json_value(_value, '$.a')` and the like, again if they are there. Those not temporary are for all sessions."""
    for name, returning in FUNCTIONS.items():
        kind = "TEMPORARY FUNCTION" if temporary else "FUNCTION"
        spark.sql(f"CREATE OR REPLACE {kind} {name}(document STRING, path STRING) RETURNS {returning}")


@attrs.frozen(kw_only=True)
class Spoken:
    """A statement for Spark. `names`: all that it names, in lower case."""

    text: str
    names: Set[str]

    @classmethod
    def of(cls, text: str) -> Spoken:
        """Raises QueryError."""
        tokens = tokenize(text)
        spoken = cls(text=text, names={token.name.lower() for token in tokens})
        timestamp, key = ("_ts", "_key") if spoken.has_kafsql_columns else ("timestamp", "key")
        edits = [*_times(tokens), *_offsets(tokens), *windows(tokens, timestamp=timestamp, key=key)]
        return attrs.evolve(spoken, text=edited(text, edits))

    @property
    def has_kafsql_columns(self) -> bool:
        """Tell whether the statement names one of KAFSQL's columns, so that its topics have them."""
        return not self.names.isdisjoint(COLUMNS)

    @property
    def needs_functions(self) -> bool:
        """Tell whether the statement calls one of KAFSQL's functions."""
        return not self.names.isdisjoint(FUNCTIONS)

    @property
    def needs_segments(self) -> bool:
        """Tell whether what `select` is given must have a column of segments."""
        return "_segment" in self.names

    def options(self) -> Mapping[str, str]:
        """Return the options that the statement's topics are read with."""
        return {"includeHeaders": "true"} if "_headers" in self.names else {}

    def select(self, frame: DataFrame) -> DataFrame:
        """Select those columns of a topic that the statement has."""
        if not self.has_kafsql_columns:
            return frame
        own = [name for name, of in COLUMNS.items() if of in frame.columns or name in self.names]
        own = [name for name in own if name not in ASKED_FOR or name in self.names]
        also = [name for name in frame.columns if name.lower() in self.names or name == DECODED]
        return frame.selectExpr(*(f"{COLUMNS[name]} AS {name}" for name in own), *also)


def _times(tokens: Sequence[Token]) -> Iterator[Edit]:
    """Numbers that `_ts` is compared with are milliseconds."""
    for index, token in enumerate(tokens):
        if token.name.lower() == "_ts":
            behind = tokens[index + 1 : index + 5]
            for number in (behind[place] for place in _compared([each.word for each in behind])):
                yield Edit(start=number.start, end=number.end, text=f"timestamp_millis({number.text})")


def _offsets(tokens: Sequence[Token]) -> Iterator[Edit]:
    """The column `offset` of a condition's beginning, which Spark takes for the clause that leaves out rows."""
    for before, token in pairwise(tokens):
        if before.word == "WHERE" and token.word == "OFFSET":
            yield Edit(start=token.start, end=token.end, text="`offset`")


def _compared(words: Sequence[str]) -> Iterator[int]:
    """Iterate over the places where a comparison that the words begin with has numbers."""
    operator_length = next((place for place, word in enumerate(words) if word not in ("<", ">", "=")), 0)
    places = (1, 3) if words[:1] == ["BETWEEN"] else (operator_length,)
    return (place for place in places if 0 < place < len(words) and words[place].isdigit())
