"""The keys of a pipeline's YAML, from which `docs/reference/pipeline.md` is made.

A mistake within one part raises ValueError when the part is made; `document` adds the line and the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from kafscale.config import Address, StoreUrl, is_endpoint, parse_duration, parse_size, split_url
from kafscale.spark.catalogs import CatalogOptions, quoted, setting

FORMATS = ("bytes", "string", "json", "avro", "protobuf", "json-schema")
REGISTRY_FORMATS = ("avro", "protobuf", "json-schema")
MODES = ("append", "upsert")
ENVELOPES = ("debezium", "payload", "unwrapped")
DEBEZIUM, PAYLOAD, UNWRAPPED = ENVELOPES
TELLING = (DEBEZIUM, UNWRAPPED)  # changes of rows
DELETES = ("delete", "mark", "keep")
_, MARK, KEEP = DELETES
OTHERS = ("table", "dead_letter")
_, DEAD_LETTER = OTHERS
SEEN = "{value}"  # in the name of tables that are made on first sight
COLUMN_TYPES = ("boolean", "int", "long", "float", "double", "string", "binary", "timestamp", "date")
METADATA = (
    *("topic", "partition", "offset", "timestamp", "timestamp_ms", "timestamp_type"),
    *("record_id", "key", "value", "headers", "headers_json"),
)
DELETED = "__deleted"
FLAGS = {  # members of rows that Debezium has unwrapped, by their names as metadata; not columns
    "op": "__op",
    "change_ms": "__ts_ms",
    "transaction_id": "__transaction_id",
    "transaction_order": "__transaction_total_order",
    "transaction_collection_order": "__transaction_data_collection_order",
}
OF_CHANGES = tuple(FLAGS)  # metadata besides, of a change that Debezium tells
TRANSFORMS = ("years", "months", "days", "hours", "bucket", "truncate")

DAY_MICROSECONDS = 86_400_000_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+")
_COLUMN = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_TRANSFORM = re.compile(
    rf"(years|months|days|hours)\(\s*({_COLUMN})\s*\)|(bucket|truncate)\(\s*(\d+)\s*,\s*({_COLUMN})\s*\)"
)
_SORT = re.compile(rf"({_COLUMN})(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?", re.IGNORECASE)
_TYPE = re.compile(r"decimal\(\d+,\s*\d+\)|(array|map|struct)<.+>", re.IGNORECASE)

TYPES_TEXT = f"{', '.join(COLUMN_TYPES)}, decimal(p,s), array<…>, map<…>, struct<…>"


class WrongSetting(ValueError):
    """The value of one key is wrong."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def _checked(check: Callable[[Any], object]) -> Any:
    """Make a validator of a function that raises ValueError."""

    def validate(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is not None:
            try:
                check(value)
            except (ValueError, re.error) as exc:
                raise WrongSetting(attribute.name, str(exc)) from exc

    return validate


def _one_of(allowed: Sequence[str]) -> Any:
    def check(value: str) -> None:
        if value not in allowed:
            raise ValueError(f"'{value}' is not one of {', '.join(allowed)}")

    return _checked(check)


def _matching(pattern: re.Pattern[str], allowed: str) -> Any:
    def check(value: str) -> None:
        if not pattern.fullmatch(value):
            raise ValueError(f"'{value}' is not {allowed}")

    return _checked(check)


def _each(parse: Callable[[str], object]) -> Any:
    return _checked(lambda values: [parse(value) for value in values])


def _at_least_one(value: int) -> None:
    if value < 1:
        raise ValueError("is at least 1")


def _a_day_at_least(value: str) -> None:
    if parse_duration(value) < DAY_MICROSECONDS:
        raise ValueError(f"'{value}' is less than a day, in which a file may be one that is being written")


def _check_type(value: str) -> None:
    if value.lower() not in COLUMN_TYPES and not _TYPE.fullmatch(value):
        raise ValueError(f"'{value}' is not one of {TYPES_TEXT}")


def _check_metadata(value: Mapping[str, str] | Sequence[str]) -> None:
    names = value.values() if isinstance(value, Mapping) else value
    unknown = [name for name in names if name not in (*METADATA, *OF_CHANGES)]
    if unknown:
        raise ValueError(f"there is no metadata '{unknown[0]}'; there is: {', '.join((*METADATA, *OF_CHANGES))}")


def partition_transform(text: str) -> str:
    """Return a partition transform in Spark's SQL. Raises ValueError."""
    found = _TRANSFORM.fullmatch(text.strip())
    if found and found[1]:
        return f"{found[1]}({_path(found[2])})"
    if found:
        return f"{found[3]}({found[4]}, {_path(found[5])})"
    if re.fullmatch(_COLUMN, text.strip()):
        return _path(text.strip())
    raise ValueError(
        f"'{text}' is not a partition: give a column, or {', '.join(TRANSFORMS)} of one, as days(c), bucket(16, c)"
    )


def sort_order(text: str) -> str:
    found = _SORT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"'{text}' is not a sort order: give a column, asc or desc, and nulls first or nulls last")
    nulls = f" NULLS {found[3].upper()}" if found[3] else ""
    return f"{_path(found[1])} {(found[2] or 'asc').upper()}{nulls}"


def _path(column: str) -> str:
    return ".".join(quoted(part) for part in column.split("."))


@attrs.frozen(kw_only=True)
class JsonColumn:
    """One column of a `json` value."""

    name: str = setting("Of the column, and of the member of the JSON object.")
    type: str = setting(f"One of {TYPES_TEXT}.", validator=_checked(_check_type))
    required: bool = setting("Whether a value without it is a bad one.", False)


@attrs.frozen(kw_only=True)
class Encoding:
    format: str = setting(f"{', '.join(FORMATS)}; the last three by the registry.", "bytes", validator=_one_of(FORMATS))
    column: str | None = setting("What to call the column, where there is only one.", None)
    columns: Sequence[JsonColumn] = setting("Of `json`: the columns.", ())
    subject: str | None = setting("Of the registry; `<topic>-value` or `<topic>-key` without it.", None)
    version: int | None = setting("Of the subject; without it the newest, looked up for each micro-batch.", None)
    message: str | None = setting("Of `protobuf`: the message's full name.", None)
    validate: bool = setting("Of `json-schema`: hold each value to its schema.", False)
    envelope: str | None = setting(
        "`debezium`: a value tells a change of a row (op, before, after), and the columns are the row's. `payload`, of "
        "`json`: the object may be in the member `payload` of another one, beside its schema. `unwrapped`: a value is "
        "the row alone, as Debezium's ExtractNewRecordState makes it, and `__deleted` or `__op` in it tells that it is "
        "deleted.",
        None,
        validator=_one_of(ENVELOPES),
    )

    def __attrs_post_init__(self) -> None:
        if self.envelope == PAYLOAD and self.format != "json":
            raise ValueError("the envelope payload is for the format json")
        if self.envelope is not None and PAYLOAD in [column.name for column in self.columns]:
            raise ValueError(f"with an envelope no column is called {PAYLOAD}")
        if self.envelope in TELLING and self.format not in ("json", *REGISTRY_FORMATS):
            raise ValueError(f"the format {self.format} has no changes of Debezium in it")
        flags = [column.name for column in self.columns if column.name in (DELETED, *FLAGS.values())]
        if self.envelope == UNWRAPPED and flags:
            raise ValueError(f"with the envelope unwrapped {flags[0]} is not a column: give it as metadata")
        if self.format == "json" and not self.columns:
            raise ValueError("the format json needs columns; for the schema of a registry it is json-schema")
        if self.columns and self.format != "json":
            raise ValueError(f"columns are for the format json; those of {self.format} follow from it")
        if not self.by_registry and (self.subject is not None or self.version is not None):
            raise ValueError(f"the format {self.format} has no subject; allowed with {', '.join(REGISTRY_FORMATS)}")
        if self.message is not None and self.format != "protobuf":
            raise ValueError("a message's name is for the format protobuf")
        if self.validate and self.format != "json-schema":
            raise ValueError("validate is for the format json-schema")

    @property
    def by_registry(self) -> bool:
        return self.format in REGISTRY_FORMATS


def _check_tables(tables: Mapping[str, str]) -> None:
    wrong = [name for name in tables.values() if not _TABLE.fullmatch(name)]
    if wrong:
        raise ValueError(f"'{wrong[0]}' is not the name of a table with its namespace, as sales.orders")


def _check_seen(value: str) -> None:
    namespace, _, name = value.rpartition(".")
    if name.count(SEEN) != 1 or SEEN in namespace or not _TABLE.fullmatch(value.replace(SEEN, "x")):
        raise ValueError(f"'{value}' is not the name of tables, with {SEEN} in its last part once, as sales.of_{SEEN}")


@attrs.frozen(kw_only=True)
class FanOut:
    by: str = setting("The column whose value names the table; `topic` may be one, of the metadata.")
    tables: Mapping[str, str] = setting(
        "`value: table`; several values may have one table.", factory=dict, validator=_checked(_check_tables)
    )
    create: str | None = setting(
        f"Tables for other values, made when the first record comes: a name with `{SEEN}` in it, as `sales.of_{SEEN}`. "
        "The value is written there in lower case, with `_` for each other character than a to z, digits and `_`.",
        None,
        validator=_checked(_check_seen),
    )
    max_tables: int = setting("Of `create`: the largest number of tables.", 20, validator=_checked(_at_least_one))
    others: str = setting(
        "Where records go that have no such table: into the mapping's own `table`, or, as a `dead_letter`, into "
        "`dead_letters`.",
        "table",
        validator=_one_of(OTHERS),
    )

    def __attrs_post_init__(self) -> None:
        if not self.tables and self.create is None:
            raise ValueError("needs tables, or create")


@attrs.frozen(kw_only=True)
class TableMapping:
    """A mapping of topics into one table, or, with `fan_out`, into several."""

    table: str = setting(
        "Its namespace and name in the catalog, as `sales.orders`.",
        validator=_matching(_TABLE, "the name of a table with its namespace, as sales.orders"),
    )
    topic: str | None = setting("One topic. One of this and the two following.", None)
    topics: Sequence[str] = setting("Several.", ())
    pattern: str | None = setting(
        "A regular expression that names of topics match as a whole.", None, validator=_checked(re.compile)
    )
    name: str | None = setting(
        "Of the mapping: its checkpoint's and its snapshots'. Without it the table's. Do not change it later.",
        None,
        validator=_matching(_NAME, "a name of letters, digits, `_`, `.` and `-`"),
    )
    mode: str = setting(
        "`append` each record, or `upsert` by key, where a tombstone deletes.", "append", validator=_one_of(MODES)
    )
    value: Encoding = attrs.field(factory=Encoding, metadata={"doc": "How values become columns."})
    key: Encoding | None = setting("How keys become columns; without it keys are left out.", None)
    upsert_by: Sequence[str] = setting(
        "Of `upsert`: the columns that tell rows apart; without it those of the key.", ()
    )
    metadata: Mapping[str, str] | Sequence[str] = setting(
        f"Columns of the record: names, or `column: name`. Names: {', '.join(METADATA)}; with the envelopes `debezium` "
        f"and `unwrapped` {', '.join(OF_CHANGES)}, too.",
        (),
        validator=_checked(_check_metadata),
    )
    fan_out: FanOut | None = setting("Further tables, by the value of a column.", None)
    create: bool = setting("Whether a table that is missing is created.", True)
    partition_by: Sequence[str] = setting(
        "Columns, or years, months, days, hours, bucket(N, c), truncate(N, c) of them. A later change applies to new "
        "files of an Iceberg table; without the key a table stays as it is.",
        (),
        validator=_each(partition_transform),
    )
    sort_by: Sequence[str] = setting(
        "Of a table that is created: columns, with `desc` or `nulls last` behind.", (), validator=_each(sort_order)
    )
    properties: Mapping[str, str] = setting("Of a table that is created, as Iceberg names them.", factory=dict)
    evolve: bool = setting(
        "Whether columns are added, int becomes long, float double and a decimal longer, where values ask for it, and "
        "partitions change with `partition_by`.",
        True,
    )
    deletes: str = setting(
        "Of `upsert`: what a tombstone, or a change that deletes or truncates, does to rows: `delete`, `mark` it in "
        "`deleted_column`, or `keep` it as it is.",
        "delete",
        validator=_one_of(DELETES),
    )
    deleted_column: str = setting("Of `deletes: mark`: a column that is true of deleted rows.", "deleted")
    dead_letters: str | None = setting(
        "A table for values that are bad; without it they stop the mapping.",
        None,
        validator=_matching(_TABLE, "the name of a table with its namespace, as sales.orders_dead"),
    )
    starting: str = setting(
        "Where to begin, if neither checkpoint nor table tell: `earliest`, `latest`, or JSON of offsets.", "earliest"
    )
    trigger: str | None = setting(
        "How often a micro-batch begins, in place of the pipeline's.", None, validator=_checked(parse_duration)
    )
    max_records: int = setting(
        "The largest number of records in a micro-batch, so that the first one ends.",
        10_000_000,
        validator=_checked(_at_least_one),
    )
    max_bytes: str | None = setting(
        "About the largest stored size of a micro-batch.", None, validator=_checked(parse_size)
    )

    def __attrs_post_init__(self) -> None:
        if sum(bool(given) for given in (self.topic, self.topics, self.pattern)) != 1:
            raise ValueError("needs one of topic, topics and pattern")
        if self.mode == "upsert" and not self.upsert_by and self.key is None:
            raise ValueError("the mode upsert needs a key (or upsert_by)")
        if self.mode == "append" and self.upsert_by:
            raise ValueError("upsert_by is for the mode upsert")
        if self.mode == "append" and self.deletes != "delete":
            raise ValueError(f"deletes: {self.deletes} is for the mode upsert")
        if self.key is not None and self.key.envelope in TELLING:
            raise ValueError(
                f"the envelope {self.key.envelope} is of values; keys are rows without one (or in a payload)"
            )
        if self.fan_out is not None and self.fan_out.create and not self.create:
            raise ValueError("fan_out creates tables, and create is off")
        of_changes = [name for name in self.metadata_columns.values() if name in OF_CHANGES]
        if of_changes and self.value.envelope not in TELLING:
            raise ValueError(
                f"the metadata {of_changes[0]} is there with value: {{envelope: debezium}} (or unwrapped) alone"
            )
        for side, encoding in (("value", self.value), ("key", self.key)):
            if encoding and encoding.by_registry and encoding.subject is None and self.topic is None:
                raise ValueError(f"{side} needs a subject, since the mapping has not one topic")

    @property
    def id(self) -> str:
        return self.name or self.table

    def into(self, table: str) -> TableMapping:
        """Return the mapping with another table of its own."""
        return attrs.evolve(self, table=table, name=self.id)

    @property
    def metadata_columns(self) -> Mapping[str, str]:
        return self.metadata if isinstance(self.metadata, Mapping) else {name: name for name in self.metadata}

    @property
    def topic_column(self) -> str | None:
        """Return the column of the topic, if it is part of a row's key."""
        return next((name for name in self.upsert_by if self.metadata_columns.get(name) == "topic"), None)

    @property
    def subscription(self) -> dict[str, str]:
        if self.pattern is not None:
            return {"subscribePattern": self.pattern}
        return {"subscribe": ",".join([self.topic] if self.topic else self.topics)}

    def subject(self, side: str) -> str:
        encoding = self.value if side == "value" else self.key
        assert encoding is not None
        return encoding.subject or f"{self.topic}-{side}"


@attrs.frozen(kw_only=True)
class BucketConfig:
    """The bucket that the broker writes. Credentials are looked for where AWS SDKs do."""

    store: str = setting(
        "As the broker's `--store`: `s3://BUCKET/PREFIX` or `file:PATH`.", validator=_checked(StoreUrl.parse)
    )
    options: Mapping[str, str] = setting(
        'Further options of `format("kafscale")`: s3Endpoint, namespace, …', factory=dict, repr=False
    )


@attrs.frozen(kw_only=True)
class RegistryConfig:
    """The schema registry, for avro, protobuf and json-schema."""

    url: str = setting("`http://HOST:PORT`, several by commas.")
    basic_auth: str | None = setting(
        "`USER:PASSWORD`. Without this and the three following, `KAFSCALE_SCHEMA_REGISTRY_BASIC_AUTH` and "
        "`KAFSCALE_SCHEMA_REGISTRY_BEARER_TOKEN` of the environment count.",
        None,
        repr=False,
    )
    basic_auth_file: str | None = setting("A file that has it.", None)
    bearer_token: str | None = setting("Sent as it is.", None, repr=False)
    bearer_token_file: str | None = setting("A file that has it.", None)
    ca_file: str | None = setting("Certificates to trust.", None)
    config_file: str | None = setting(
        "A file of settings by the names of Confluent's clients, such as `basic.auth.user.info` and `ssl.…`, for a "
        "certificate of the pipeline's own.",
        None,
    )


@attrs.frozen(kw_only=True)
class Maintenance:
    """Care of the tables, by `kafscale pipeline maintain`, and by `run` if there is an `every`."""

    every: str | None = setting(
        "How often `run` does it; without it only `maintain` does.", None, validator=_checked(parse_duration)
    )
    compact: bool = setting("Whether small files are put together.", True)
    target_file_size: str = setting("How large they become.", "512MiB", validator=_checked(parse_size))
    expire_after: str = setting("How long snapshots are kept.", "5d", validator=_checked(parse_duration))
    keep_snapshots: int = setting("How many are kept at least.", 1, validator=_checked(_at_least_one))
    orphans_after: str = setting(
        "How old a file is before it is deleted if no snapshot knows it; a day at least.",
        "3d",
        validator=_checked(_a_day_at_least),
    )


def parse_collector(text: str) -> str:
    """Return the URL of a collector of traces. Raises ValueError."""
    if not is_endpoint(split_url(text)):
        raise ValueError(f"'{text}' is not a URL such as http://HOST:PORT")
    return text


@attrs.frozen(kw_only=True)
class Pipeline:
    """A whole pipeline."""

    source: BucketConfig = setting("What is read.")
    catalog: CatalogOptions = setting("Where the tables are.")
    checkpoints: str = setting(
        "A directory that belongs to this pipeline: a path, or a URL that Spark's Hadoop can write."
    )
    mappings: Sequence[TableMapping] = setting("Which topics go into which tables; at least one.")
    registry: RegistryConfig | None = setting("For avro, protobuf and json-schema.", None)
    trigger: str = setting("How often a micro-batch begins.", "60s", validator=_checked(parse_duration))
    metrics: str | None = setting(
        "`HOST:PORT` where `run` serves metrics for Prometheus at `/metrics`.", None, validator=_checked(Address.parse)
    )
    traces: str | None = setting(
        "URL of an OpenTelemetry collector, such as `http://127.0.0.1:4318`: `run` sends it a span for each batch. "
        "Needs the extra `traces`.",
        None,
        validator=_checked(parse_collector),
    )
    spark: Mapping[str, str] = setting("Settings of Spark.", factory=dict, repr=False)
    maintenance: Maintenance = attrs.field(factory=Maintenance, metadata={"doc": "Care of the tables."})

    def __attrs_post_init__(self) -> None:
        if not self.mappings:
            raise ValueError("needs at least one mapping")
        names = [mapping.id for mapping in self.mappings]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"two mappings have the name '{twice[0]}': give them a name each")
        for mapping in self.mappings:
            if mapping.fan_out is not None and mapping.table in mapping.fan_out.tables.values():
                raise ValueError(
                    f"fan_out names the table {mapping.table} of its own mapping, which has what others do not"
                )
        if self.registry is None:
            for mapping in self.mappings:
                if any(encoding is not None and encoding.by_registry for encoding in (mapping.value, mapping.key)):
                    raise ValueError(f"the mapping '{mapping.id}' needs a registry")

    def full_name(self, table: str) -> str:
        return self.catalog.full_name(table)
