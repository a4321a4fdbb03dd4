"""KAFSQL in Spark's spelling: clauses that bound a read, its columns and functions, and the window of a join.

    SELECT * FROM orders LAST 15 minutes          LAST 15m, 1h, 7d: by timestamp, from now back
    SELECT * FROM orders TAIL 20                  the last 20 records
    SELECT * FROM orders SCAN FULL LIMIT 10       a read of any size
    FROM orders o JOIN payments p ON o.key = p.key WITHIN 10m     … ON (o.key = p.key) AND p.timestamp BETWEEN …
    FROM orders o JOIN payments p WITHIN 10m                      … ON o.key = p.key AND p.timestamp BETWEEN …

A clause holds for all topics of its SELECT, and of SELECTs in parentheses within it that have no clause of their own,
at any place in its SELECT. Spark's grammar allows neither a number behind a word nor FULL without JOIN there, so a
clause can't be mistaken. `last(…)` and `tail(…)` in place of a table bound the read of one topic. The window is between
the table of its JOIN and the first one behind FROM, wherever WITHIN stands behind its JOIN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pyarrow as pa

from kafscale.config import parse_duration
from kafscale.errors import QueryError
from kafscale.spark.bucket.catalog import PartitionLog
from kafscale.spark.sql.tokens import Edit, SqlToken, edited, tokenize
from kafscale.spark.values.decoder import DECODED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SET_OPERATORS = ("UNION", "INTERSECT", "EXCEPT", "MINUS")
UNITS = {"MILLISECOND": "ms", "SECOND": "s", "MINUTE": "m", "HOUR": "h", "DAY": "d"}


@attrs.frozen(kw_only=True)
class Bound:
    """Bounds of a read: since `last_ms` ago, of that the last `tail_count` records; `is_full`: of any size."""

    last_ms: int | None = None
    tail_count: int | None = None
    is_full: bool = False

    def joined(self, other: Bound) -> Bound:
        return Bound(
            last_ms=other.last_ms if other.last_ms is not None else self.last_ms,
            tail_count=other.tail_count if other.tail_count is not None else self.tail_count,
            is_full=self.is_full or other.is_full,
        )


@attrs.define
class ClauseScope:
    """A SELECT, or the inside of parentheses."""

    start: int
    end: int
    bound: Bound | None = None


@attrs.frozen
class Clauses:
    """A statement with spaces in place of its clauses, so that positions stay the same."""

    text: str
    scopes: Sequence[ClauseScope]

    @classmethod
    def of(cls, text: str) -> Clauses:
        tokens = tokenize(text)
        blank = list(text)
        open_scopes, scopes = [ClauseScope(0, len(text))], []
        index = 0
        while index < len(tokens):
            token = tokens[index]
            found = _clause(tokens, index)
            if found is not None:
                bound, index = found
                open_scopes[-1].bound = (open_scopes[-1].bound or Bound()).joined(bound)
                blank[token.start : tokens[index - 1].end] = " " * (tokens[index - 1].end - token.start)
                continue
            if token.text == "(":
                open_scopes.append(ClauseScope(token.end, len(text)))
            elif token.word in SET_OPERATORS or (token.text == ")" and len(open_scopes) > 1):
                scopes.append(attrs.evolve(open_scopes.pop(), end=token.start))
                if token.text != ")":
                    open_scopes.append(ClauseScope(token.end, len(text)))
            index += 1
        return cls("".join(blank), [*scopes, *open_scopes])

    def bound_at(self, position: int) -> Bound:
        around = [scope for scope in self.scopes if scope.start <= position < scope.end and scope.bound is not None]
        innermost = max(around, key=lambda each: each.start, default=None)
        return Bound() if innermost is None or innermost.bound is None else innermost.bound


def duration_ms(tokens: Sequence[SqlToken]) -> tuple[int, int]:
    """Read the time that tokens begin with (`15m`, `1.5 h`, `15 minutes`), and count its tokens. Raises ValueError."""
    number = tokens[0].text if tokens else ""
    unit = tokens[1].word.removesuffix("S") if len(tokens) > 1 else ""
    if number.replace(".", "", 1).isdigit() and (unit in UNITS or tokens[1:2]):
        return parse_duration(number + UNITS.get(unit, tokens[1].text)) // 1000, 2
    return parse_duration(number) // 1000, 1


def _clause(tokens: Sequence[SqlToken], index: int) -> tuple[Bound, int] | None:
    word, following = tokens[index].word, tokens[index + 1 : index + 4]
    if not following or (index and tokens[index - 1].text == "."):
        return None
    if word == "TAIL" and following[0].text.isdigit():
        return Bound(tail_count=int(following[0].text)), index + 2
    if word == "SCAN" and following[0].word == "FULL":
        if len(following) > 1 and following[1].word in ("JOIN", "OUTER"):
            return None
        return Bound(is_full=True), index + 2
    if word == "LAST" and following[0].text[0].isdigit():
        try:
            last_ms, count = duration_ms(following)
        except ValueError as exc:
            raise QueryError(f"LAST {following[0].text}: give a time, such as LAST 15m or LAST 15 minutes") from exc
        return Bound(last_ms=last_ms), index + 1 + count
    return None


TABLE_FUNCTIONS = ("last", "tail")
FUNCTION_FORMS = "last('orders', INTERVAL 15 MINUTES), tail('orders', 20) and tail('orders', 20, PARTITION)"


@attrs.frozen
class Argument:
    """A literal. `is_time`: an interval, in ms."""

    value: Any
    is_time: bool = False


@attrs.frozen(kw_only=True)
class TopicCall:
    """A call of `last(…)` or `tail(…)`."""

    start: int
    end: int
    function: str
    topic: str
    arguments: Sequence[Argument]


def bound_of(call: TopicCall) -> tuple[Bound, int | None]:
    """Return the bound of a call, and the partition if it names one. Raises QueryError."""
    match call.function, call.arguments:
        case "last", [Argument(int(last_ms), True)]:
            return Bound(last_ms=last_ms), None
        case "last", [Argument(str(text))]:
            return Bound(last_ms=_duration_of(text)), None
        case "tail", [Argument(int(tail_count), False)] if tail_count >= 0:
            return Bound(tail_count=tail_count), None
        case "tail", [Argument(int(tail_count), False), Argument(int(partition), False)] if tail_count >= 0:
            return Bound(tail_count=tail_count), partition
    raise QueryError(f"{call.function}() is called in another way; there are {FUNCTION_FORMS}")


def _duration_of(text: str) -> int:
    tokens = tokenize(text)
    with suppress(ValueError):
        last_ms, used = duration_ms(tokens)
        if used == len(tokens):
            return last_ms
    raise QueryError(f"last(): '{text}' is not a time; allowed: '15m', '1h' or INTERVAL 15 MINUTES")


BEGINNING = ("SELECT", "WITH", "(")
# TABLE and FROM without SELECT give all columns, NATURAL joins by those of both sides, PIVOT groups by all others;
# the rest runs at once, or has names that only Spark puts together.
ALL = frozenset(
    (
        *("TABLE", "NATURAL", "PIVOT", "UNPIVOT"),
        *("IDENTIFIER", "EXECUTE", "INSERT", "MERGE", "UPDATE", "CREATE", "TRANSFORM"),
    )
)
BEFORE_QUERY = ("(", "ALL", "DISTINCT", "AS", *SET_OPERATORS)


def columns_needed(text: str, columns: Collection[str], others: Mapping[str, str]) -> Set[str] | None:
    """Return which of these columns a statement can need; None if it may need all, as by `*`.

    Spark reads all columns of a source in Python, so the source is loaded with a schema that has fewer. Names count
    anywhere in the text, also in a string or as part of a longer name. `others` are further names of columns.
    """
    tokens = tokenize(text)
    words = [token.word for token in tokens]
    if words[:1] == ["EXPLAIN"]:
        tokens, words = tokens[1:], words[1:]
    if "SELECT" not in words or words[0] not in BEGINNING or not ALL.isdisjoint(words):
        return None
    if any(_is_star(tokens, index) or _is_bare(words, index) for index in range(len(words))):
        return None
    lowered = text.lower()
    named = {name for name in columns if name.lower() in lowered}
    return named | {name for other, name in others.items() if other in lowered and name in columns}


def _is_star(tokens: Sequence[SqlToken], index: int) -> bool:
    """Tell whether a token is a `*` other than that of `count(*)`."""
    around = [token.word for token in tokens[max(0, index - 2) : index + 2]]
    return tokens[index].text == "*" and around != ["COUNT", "(", "*", ")"]


def _is_bare(words: Sequence[str], index: int) -> bool:
    """Tell whether a query begins with this FROM, or goes on by a pipe."""
    if words[index] == "FROM":
        return not index or words[index - 1] in BEFORE_QUERY
    return words[index : index + 2] == ["|", ">"]


CLAUSES = ("LAST", "TAIL", "SCAN", "LIMIT", "WHERE", "GROUP", "ORDER", "HAVING", "QUALIFY", "WINDOW")
KINDS = ("INNER", "LEFT", "RIGHT", "FULL", "CROSS", "SEMI", "ANTI", "NATURAL")  # of a JOIN
NO_ALIAS = (*CLAUSES, *KINDS, "ON", "USING", "WITHIN", "JOIN", "TABLESAMPLE", "WITH", ",")


def windows(tokens: Sequence[SqlToken], *, timestamp: str, key: str) -> Iterator[Edit]:
    """Make the edits that replace each WITHIN. `timestamp` and `key` are columns. Raises QueryError."""
    for index, token in enumerate(tokens):
        if token.word == "WITHIN" and tokens[index + 1 : index + 2] and tokens[index + 1].text[0].isdigit():
            try:
                window_ms, count = duration_ms(tokens[index + 1 : index + 4])
            except ValueError as exc:
                wrong = tokens[index + 1].text
                raise QueryError(f"WITHIN {wrong}: give a time, such as WITHIN 10m or WITHIN 10 minutes") from exc
            join = _Join.before(_level(tokens, index))
            condition = join.condition(timestamp=timestamp, key=key, window_ms=window_ms)
            end = tokens[index + count].end
            if join.end == token.start:
                yield Edit(start=token.start, end=end, text=condition)
            else:
                yield Edit(start=join.end, end=join.end, text=condition)
                yield Edit(start=token.start, end=end, text="")
            if join.on is not None:
                yield Edit(start=join.on.end, end=join.on.end, text=" (")


@attrs.frozen(kw_only=True)
class _Join:
    left: str
    right: str
    on: SqlToken | None
    end: int

    @classmethod
    def before(cls, level: Sequence[SqlToken]) -> _Join:
        words = [token.word for token in level]
        joined_at = _last(words, "JOIN")
        from_at = _last(words[:joined_at], "FROM")
        if joined_at < 0 or from_at < 0:
            raise QueryError("WITHIN is for JOIN: FROM orders o JOIN payments p ON o.key = p.key WITHIN 10m")
        behind = level[joined_at + 1 :]
        on_at = next((place for place, token in enumerate(behind) if token.word in ("ON", "USING")), None)
        if on_at is not None and behind[on_at].word == "USING":
            raise QueryError("WITHIN goes with JOIN … ON, not with USING: give the condition by ON")
        ends = (token for place, token in enumerate(behind) if place > (on_at or 0) and _ends(behind, place))
        return cls(
            left=_name(level[from_at + 1 :]),
            right=_name(behind),
            on=None if on_at is None else behind[on_at],
            end=next(ends).start,
        )

    def condition(self, *, timestamp: str, key: str, window_ms: int) -> str:
        opening = f" ON {self.left}.{key} = {self.right}.{key}" if self.on is None else ")"
        time, window = f"{self.left}.{timestamp}", f"INTERVAL {window_ms} MILLISECONDS"
        return f"{opening} AND {self.right}.{timestamp} BETWEEN {time} - {window} AND {time} + {window} "


def _level(tokens: Sequence[SqlToken], index: int) -> Sequence[SqlToken]:
    """Return the tokens up to this one within the same parentheses and SELECT."""
    found, depth = [tokens[index]], 0
    for token in reversed(tokens[:index]):
        depth += {")": 1, "(": -1}.get(token.text, 0)
        if depth < 0 or (depth == 0 and token.word in SET_OPERATORS):
            break
        if depth == 0 or (depth == 1 and token.text == ")"):
            found.append(token)
    return found[::-1]


def _name(tokens: Sequence[SqlToken]) -> str:
    """Return the name of the table at the beginning: its alias, or the last part of its name."""
    place, name = 0, ""
    while (tokens[place].text != "(" and not name) or tokens[place].text == ".":
        place += tokens[place].text == "."
        name = tokens[place].text
        place += 1
    if tokens[place].text == "(":  # of a subquery, or of a function's arguments
        place += 2
    place += tokens[place].word == "AS"
    if tokens[place].word not in NO_ALIAS:
        return tokens[place].text
    if not name:
        raise QueryError("WITHIN needs a name for each side of its JOIN: FROM (…) o JOIN (…) p ON … WITHIN 10m")
    return name


def _ends(tokens: Sequence[SqlToken], place: int) -> bool:
    word = tokens[place].word
    is_call = place + 1 < len(tokens) and tokens[place + 1].text == "("  # left(name, 1), last(name)
    return word in ("WITHIN", "JOIN") or (word in (*CLAUSES, *KINDS) and not is_call)


def _last(words: Sequence[str], word: str) -> int:
    return len(words) - 1 - words[::-1].index(word) if word in words else -1


SEGMENT = "segment"


def with_segments(frame: DataFrame, logs: Mapping[int, PartitionLog]) -> DataFrame:
    """Add the key of each record's segment; NULL for records that are not in one yet."""
    from pyspark.sql.pandas import functions

    names = {index: [segment.key.key for segment in log.segments] for index, log in logs.items()}
    starts = {index: [segment.base_offset for segment in log.segments] for index, log in logs.items()}
    ends = {index: min(log.end_offset, log.flushed_end_offset) for index, log in logs.items()}

    def found(partitions: pa.Array, offsets: pa.Array) -> pa.Array:
        result: Any = np.full(len(offsets), None, dtype=object)
        partition_of, offset_of = partitions.to_numpy(), offsets.to_numpy()
        for index in names:
            rows = (partition_of == index) & (offset_of < ends[index])
            places = np.searchsorted(starts[index], offset_of[rows], side="right") - 1
            result[rows] = np.array([*names[index], None], dtype=object)[places]
        return pa.array(result, pa.string())

    arrow_udf: Any = functions.arrow_udf  # whose stub in pyspark lacks plain functions
    return frame.withColumn(SEGMENT, arrow_udf(found, "string")("partition", "offset"))


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
    """Define `json_value(_value, '$.a')` and the like, or define them again; for all sessions if not temporary."""
    for name, returning in FUNCTIONS.items():
        kind = "TEMPORARY FUNCTION" if temporary else "FUNCTION"
        spark.sql(f"CREATE OR REPLACE {kind} {name}(document STRING, path STRING) RETURNS {returning}")


@attrs.frozen(kw_only=True)
class Spoken:
    """A statement for Spark, and all names in it, in lower case."""

    text: str
    names: Set[str]

    @classmethod
    def of(cls, text: str) -> Spoken:
        tokens = tokenize(text)
        spoken = cls(text=text, names={token.name.lower() for token in tokens})
        timestamp, key = ("_ts", "_key") if spoken.has_kafsql_columns else ("timestamp", "key")
        # The column `offset` is quoted at the beginning of a condition, where Spark expects its clause.
        offsets = [
            Edit(start=token.start, end=token.end, text="`offset`")
            for before, token in pairwise(tokens)
            if before.word == "WHERE" and token.word == "OFFSET"
        ]
        edits = [*_times(tokens), *offsets, *windows(tokens, timestamp=timestamp, key=key)]
        return attrs.evolve(spoken, text=edited(text, edits))

    @property
    def has_kafsql_columns(self) -> bool:
        return not self.names.isdisjoint(COLUMNS)

    @property
    def needs_functions(self) -> bool:
        return not self.names.isdisjoint(FUNCTIONS)

    @property
    def needs_segments(self) -> bool:
        return "_segment" in self.names

    def options(self) -> Mapping[str, str]:
        return {"includeHeaders": "true"} if "_headers" in self.names else {}

    def select(self, frame: DataFrame) -> DataFrame:
        if not self.has_kafsql_columns:
            return frame
        own = [name for name, of in COLUMNS.items() if of in frame.columns or name in self.names]
        own = [name for name in own if name not in ASKED_FOR or name in self.names]
        also = [name for name in frame.columns if name.lower() in self.names or name == DECODED]
        return frame.selectExpr(*(f"{COLUMNS[name]} AS {name}" for name in own), *also)


def _times(tokens: Sequence[SqlToken]) -> Iterator[Edit]:
    """Turn numbers that `_ts` is compared with, milliseconds, into timestamps."""
    for index, token in enumerate(tokens):
        if token.name.lower() == "_ts":
            behind = tokens[index + 1 : index + 5]
            for number in (behind[place] for place in _compared([token.word for token in behind])):
                yield Edit(start=number.start, end=number.end, text=f"timestamp_millis({number.text})")


def _compared(words: Sequence[str]) -> Iterator[int]:
    operator_length = next((place for place, word in enumerate(words) if word not in ("<", ">", "=")), 0)
    places = (1, 3) if words[:1] == ["BETWEEN"] else (operator_length,)
    return (place for place in places if 0 < place < len(words) and words[place].isdigit())
