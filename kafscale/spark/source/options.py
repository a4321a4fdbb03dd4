"""The options of `format("kafscale")`: names, defaults, precedence and errors of Spark's Kafka source, and some more.

Names are case-insensitive. `docs/reference/spark-options.md` is made from `OPTIONS`. Mistakes raise ConfigError before
a query begins.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

import attrs

from kafscale.config import StoreUrl
from kafscale.errors import ConfigError
from kafscale.spark.brokers.newest import BrokerOptions
from kafscale.spark.bucket.bucket import BucketOptions
from kafscale.spark.bucket.position import Subscription
from kafscale.spark.source.client_settings import broker_options, secures
from kafscale.spark.source.offsets import (
    EARLIEST,
    LATEST,
    OffsetLimit,
    parse_assignment,
    parse_offsets,
    parse_timestamp,
    parse_timestamps,
)
from kafscale.store.paths import NAMESPACE_DEFAULT
from kafscale.store.s3.sigv4 import S3Credentials

FORMAT = "kafscale"  # what Spark knows the source by

logger = logging.getLogger(__name__)

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_MS_OF = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@attrs.frozen
class SourceOption:
    """One option. `default` is as a user would write it; None for no default."""

    name: str
    doc: str
    default: str | None = None


OPTIONS: Mapping[str, Sequence[SourceOption]] = {
    "read": (
        SourceOption("store", "The bucket, as the broker's `--store`: `s3://BUCKET/PREFIX` or `file:PATH`."),
        SourceOption("namespace", "The namespace of the topics in the bucket.", NAMESPACE_DEFAULT),
        SourceOption("s3Endpoint", "URL of the store, perhaps with a path before the bucket; without it, AWS."),
        SourceOption("s3Region", "The region; without it, the one that AWS SDKs find, or us-east-1."),
        SourceOption("s3PathStyle", "`true`: the bucket is in the path of URLs, not in the host's name."),
        SourceOption("s3CaFile", "Certificates to trust, for an endpoint of your own."),
        SourceOption("s3AccessKeyId", "An access key; without it, each process looks where AWS SDKs do."),
        SourceOption("s3SecretAccessKey", "The secret of `s3AccessKeyId`."),
        SourceOption("s3SessionToken", "The session token of `s3AccessKeyId`, if that is temporary."),
        SourceOption("subscribe", "Topics, separated by commas. Give one of this and the two following."),
        SourceOption("subscribePattern", "A regular expression that matches whole names of topics."),
        SourceOption("assign", 'Partitions: `{"topic":[0,1]}`.'),
        SourceOption(
            "startingOffsets",
            'Where to begin: `earliest`, `latest` (streams alone), or `{"topic":{"0":23,"1":-2}}` for all partitions, '
            "where -2 is earliest and -1 latest. A restarted stream goes on where it was.",
            "earliest; latest for a stream",
        ),
        SourceOption(
            "startingOffsetsByTimestamp",
            'Goes before `startingOffsets`: milliseconds since the epoch, `{"topic":{"0":1000}}`. A partition begins '
            "at its first record with this timestamp or a later one.",
        ),
        SourceOption("startingTimestamp", "Goes before both: one timestamp for all partitions."),
        SourceOption(
            "startingOffsetsByTimestampStrategy",
            "For a partition without such a record: `error`, or `latest` to begin at its end.",
            "error",
        ),
        SourceOption(
            "failOnDataLoss",
            "`true`: the query fails where offsets are gone or unreadable; `false`: it logs them and goes on.",
            "true",
        ),
        SourceOption(
            "isolationLevel",
            "`read_committed` leaves out aborted transactions, and ends before the first open one; `read_uncommitted` "
            "reads the records of all transactions, as Spark's Kafka source does by default. Without transactions both "
            "are the same.",
            "read_committed",
        ),
        SourceOption(
            "freshness",
            "`bucket` reads all acknowledged records in the bucket: segments, and behind them the write-ahead log of a "
            "broker with `--durability s3-wal`. `segments` reads flushed records alone; for brokers in the other modes "
            "both are the same. `broker` reads segments, and fetches later records from the brokers of "
            "`kafka.bootstrap.servers`: all acknowledged records, in every mode.",
            "bucket",
        ),
        SourceOption("includeHeaders", "`true` adds a column `headers`.", "false"),
        SourceOption(
            "valueFormat",
            "`avro`, `protobuf` or `json`: values begin with the id of their schema in a registry, and a column "
            "`decoded` of `value` and `error` is added. [Decode values](../how-to/spark-values.md).",
        ),
        SourceOption("schemaRegistryUrl", "Needed by `valueFormat`; several URLs are separated by commas."),
        SourceOption(
            "schemaRegistryBasicAuth",
            "`user:password`. Without this and the three following, `KAFSCALE_SCHEMA_REGISTRY_BASIC_AUTH` and "
            "`KAFSCALE_SCHEMA_REGISTRY_BEARER_TOKEN` of the driver's environment count.",
        ),
        SourceOption("schemaRegistryBasicAuthFile", "A file of the driver with `user:password`."),
        SourceOption("schemaRegistryBearerToken", "A token in place of `schemaRegistryBasicAuth`."),
        SourceOption("schemaRegistryBearerTokenFile", "A file of the driver with the token."),
        SourceOption("schemaRegistryCaFile", "Certificates to trust, for a registry of your own."),
        SourceOption(
            "schemaRegistryConfigFile",
            "A file of the driver by the names of Confluent's clients: `basic.auth.user.info`, `bearer.auth.token`, "
            "tokens of an issuer, and `ssl.…` for authorities and a certificate of your own. "
            "[Which names](../how-to/spark-values.md#a-registry-that-is-secured).",
        ),
        SourceOption(
            "valueSubject",
            "The subject whose schema values are read into. It has no default for several topics, or a pattern.",
            "TOPIC-value",
        ),
        SourceOption("valueSchemaVersion", "The version of the subject, looked up when a query begins.", "latest"),
        SourceOption("valueSchema", "The schema that values are read into, in place of a subject."),
        SourceOption("valueMessage", "Protobuf: the full name of the message; without it, the first one."),
        SourceOption(
            "valueValidate", "JSON: check each value against its writer schema, which takes ten times as long.", "false"
        ),
        SourceOption("minPartitions", "The least number of tasks, if there are as many batches."),
        SourceOption("maxRecordsPerPartition", "About the largest number of records in a task, cut at batches."),
        SourceOption("groupIdPrefix", "Accepted and ignored: nothing here has a consumer group."),
        SourceOption("kafka.isolation.level", "`isolationLevel` by its name in the Kafka source. Give one of the two."),
    ),
    "batch": (
        SourceOption("endingOffsets", "Where to end, exclusive: `latest`, or JSON as `startingOffsets`.", "latest"),
        SourceOption("endingOffsetsByTimestamp", "Goes before `endingOffsets`; JSON of milliseconds."),
        SourceOption("endingTimestamp", "Goes before both: one timestamp for all partitions."),
        SourceOption(
            "pushFilters",
            "`true`: conditions on `partition`, `offset` and `timestamp` bound what is read. One query for each "
            "`load()`; needs `spark.sql.python.filterPushdown.enabled`.",
            "false",
        ),
        SourceOption(
            "pushedFiltersDirectory",
            "With `pushFilters`: a directory of the driver that keeps the conditions of each scan of a `load()`, so "
            "that one query may scan it several times, each time with a condition. `kafscale sql` gives it.",
        ),
        SourceOption(
            "maxScanBytes",
            "A query that would read more of the bucket fails before it begins, and says how much it would read.",
        ),
    ),
    "stream": (
        SourceOption("maxOffsetsPerTrigger", "The largest number of offsets in a batch, shared by size."),
        SourceOption("maxBytesPerTrigger", "About the largest size of a batch, as it is stored."),
        SourceOption("minOffsetsPerTrigger", "A batch waits for this number of offsets …"),
        SourceOption("maxTriggerDelay", "… or for this time: `30s`, `15m`, `1h`.", "15m"),
        SourceOption(
            "warnOfAvailableNow",
            "`true` warns of what `Trigger.AvailableNow` leaves out on Spark 4.1, where it has one batch: the last "
            "results of a query with state, and records past a limit. `false` is for a query without state that is "
            "started again until nothing is left.",
            "true",
        ),
    ),
    "write": (
        SourceOption(
            "kafka.bootstrap.servers",
            "The broker to produce through; required for writing, and for reading with `freshness=broker`.",
        ),
        SourceOption(
            "kafkaConfigFile",
            "A file of the driver with Kafka's client settings, as `--command-config`: `security.protocol`, `ssl.…` "
            "and `sasl.…` count, and options go before them. So no password is in a program or a plan.",
        ),
        SourceOption("topic", "The topic that rows go to; goes before the column `topic`."),
        SourceOption(
            "transactional",
            "`true`: all rows of a micro-batch, or of one `df.write`, are written exactly once, in transactions. [What "
            "that takes](../how-to/spark.md#exactly-once).",
            "false",
        ),
        SourceOption(
            "transactionalId",
            "With `transactional`: the id that fences other writers of the same rows. A stream has its own, by the id "
            "in its checkpoint; any other write must be given one, and a repeated write the same one.",
            "kafscale-spark-QUERY",
        ),
        SourceOption(
            "kafka.*",
            "Settings of the producer, by the names of Java's or librdkafka's clients; TLS and SASL: [how to log in]"
            "(../how-to/spark.md#a-broker-that-is-secured). For reading, they are accepted and ignored with one "
            "warning, except those of TLS and SASL with `freshness=broker`.",
        ),
    ),
}

# Of Spark itself, and of the Kafka source where they are about its connections to brokers.
ACCEPTED = (
    "checkpointLocation",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
# What Spark gives besides the options of a table (CREATE TABLE … USING kafscale), which it repeats as `option.…`.
_OF_TABLES = ("provider", "owner", "location", "path", "external", "is_managed_location")
OF_A_TABLE = (
    "If this reads a table (CREATE TABLE … USING kafscale): Spark gives a source in Python none of its options then. "
    "Use CREATE TEMPORARY VIEW … USING kafscale OPTIONS (…), or SELECT … FROM the_table WITH (store = '…', …)"
)
_NAMES = {option.name.lower(): option.name for group in OPTIONS.values() for option in group if option.name[-1] != "*"}
_ISOLATION_LEVELS = ("read_committed", "read_uncommitted")
_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_REFUSED = {
    "kafka.auto.offset.reset": "set startingOffsets instead; a stream that is restarted goes on where it was",
    "kafka.key.deserializer": "keys are bytes; decode them with functions of DataFrames",
    "kafka.value.deserializer": "values are bytes; decode them with functions of DataFrames",
    "kafka.enable.auto.commit": "leave it out: Spark keeps the offsets in the checkpoint",
    "kafka.interceptor.classes": "leave it out: there is no consumer here",
}


class Given:
    """The options of a user, by case-insensitive names. Raises ConfigError for an unknown name."""

    def __init__(self, options: Mapping[str, str]) -> None:
        options = _without_table(options)
        self.values = {name.lower(): value for name, value in options.items()}
        self._has_warned = False
        known = _NAMES.keys() | {name.lower() for name in ACCEPTED}
        for name in options:
            if name.lower() not in known and not name.lower().startswith("kafka."):
                raise _unknown(name)

    def text(self, name: str) -> str | None:
        return self.values.get(name.lower())

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise ConfigError(f"{name} is true or false, not '{text}'")
        return text.strip().lower() == "true"

    def count(self, name: str) -> int | None:
        """Return a positive number; None if it was not given. Raises ConfigError."""
        text = self.text(name)
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            number = 0
        if number <= 0:
            raise ConfigError(f"{name} is a positive number, not '{text}'")
        return number

    def duration_ms(self, name: str, default: str) -> int:
        text = self.text(name) or default
        match = _DURATION.fullmatch(text.strip().lower())
        if match is None:
            raise ConfigError(f"{name} is a time like 30s, 15m or 1h, not '{text}'")
        return int(match[1]) * _MS_OF[match[2] or "ms"]

    def warn_of_ignored(self) -> None:
        """Warn once of all options that have no effect here."""
        asks_brokers = freshness_of(self) is Freshness.BROKER
        ignored = sorted(
            name
            for name in self.values
            if (name.startswith("kafka") and name not in _NAMES and not (asks_brokers and secures(name)))
            or name.startswith(("fetchoffset.", "groupidprefix"))
        )
        if ignored and not self._has_warned:
            self._has_warned = True
            logger.warning("ignored, since the bucket is read and no broker: %s", ", ".join(ignored))


def _without_table(options: Mapping[str, str]) -> Mapping[str, str]:
    if "provider" not in {name.lower() for name in options}:
        return options
    return {
        name: value
        for name, value in options.items()
        if name.lower() not in _OF_TABLES and not name.lower().startswith("option.")
    }


def _unknown(name: str) -> ConfigError:
    names = {**_NAMES, **{name.lower(): name for name in ACCEPTED}}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    if near:
        return ConfigError(f"there is no option '{name}'; did you mean '{names[near[0]]}'?")
    return ConfigError(f"there is no option '{name}'; there are: {', '.join(_NAMES.values())}")


class Freshness(StrEnum):
    """The newest records to read: all acknowledged ones in the bucket or at brokers, or flushed ones alone."""

    BUCKET = "bucket"
    SEGMENTS = "segments"
    BROKER = "broker"


@attrs.frozen(kw_only=True)
class ReadOptions:
    """Options that batches and streams share; travels to the tasks."""

    bucket: BucketOptions
    namespace: str
    subscription: Subscription
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    committed_only: bool
    freshness: Freshness
    brokers: BrokerOptions | None = None

    @classmethod
    def of(cls, given: Given) -> ReadOptions:
        """Read the options. Raises ConfigError."""
        for name, instead in _REFUSED.items():
            if name in given.values:
                raise ConfigError(f"the option {name} is not supported: {instead}")
        return cls(
            bucket=bucket_options(given),
            namespace=given.text("namespace") or NAMESPACE_DEFAULT,
            subscription=_subscription(given),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            include_headers=given.flag("includeHeaders", False),
            min_partitions=given.count("minPartitions"),
            max_records_per_partition=given.count("maxRecordsPerPartition"),
            committed_only=reads_committed_only(given),
            freshness=freshness_of(given),
            brokers=brokers_of(given),
        )


@attrs.frozen(kw_only=True)
class BatchOptions:
    """The beginning, the end and the size limit of a batch query."""

    starting: OffsetLimit
    ending: OffsetLimit
    max_scan_bytes: int | None = None

    @classmethod
    def of(cls, given: Given) -> BatchOptions:
        """Read the options. Raises ConfigError."""
        starting = _limit(given, "starting", EARLIEST)
        ending = _limit(given, "ending", LATEST)
        if starting.has(LATEST):
            raise ConfigError(f"{starting.option} can't be latest in a batch query: give an offset, or earliest (-2)")
        if ending.has(EARLIEST):
            raise ConfigError(f"{ending.option} can't be earliest in a batch query: give an offset, or latest (-1)")
        _check_order(starting, ending)
        for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if given.text(name) is not None:
                logger.warning("%s is ignored in a batch query", name)
        return cls(starting=starting, ending=ending, max_scan_bytes=given.count("maxScanBytes"))


@attrs.frozen(kw_only=True)
class StreamOptions:
    """The beginning of a stream, and the limits of its batches."""

    starting: OffsetLimit
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    warns_of_available_now: bool = True

    @classmethod
    def of(cls, given: Given) -> StreamOptions:
        """Read the options. Raises ConfigError."""
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if given.text(name) is not None:
                raise ConfigError(f"{name} is not for streams, which have no end: leave it out, or use spark.read")
        if given.flag("pushFilters", False):
            raise ConfigError("pushFilters is not for streams: leave it out")
        max_offsets, min_offsets = given.count("maxOffsetsPerTrigger"), given.count("minOffsetsPerTrigger")
        if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
            raise ConfigError(
                f"minOffsetsPerTrigger ({min_offsets}) is higher than maxOffsetsPerTrigger ({max_offsets}): lower it"
            )
        return cls(
            starting=_limit(given, "starting", LATEST),
            max_offsets=max_offsets,
            max_bytes=given.count("maxBytesPerTrigger"),
            min_offsets=min_offsets,
            max_delay_ms=given.duration_ms("maxTriggerDelay", "15m"),
            warns_of_available_now=given.flag("warnOfAvailableNow", True),
        )

    @property
    def limits(self) -> Sequence[str]:
        named = {
            "maxOffsetsPerTrigger": self.max_offsets,
            "maxBytesPerTrigger": self.max_bytes,
            "minOffsetsPerTrigger": self.min_offsets,
        }
        return [name for name, value in named.items() if value is not None]


def _limit(given: Given, side: str, default: int) -> OffsetLimit:
    strategy = (given.text("startingOffsetsByTimestampStrategy") or "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise ConfigError(f"startingOffsetsByTimestampStrategy is error or latest, not '{strategy}'")
    latest_if_none = side == "ending" or strategy == "latest"
    if (text := given.text(f"{side}Timestamp")) is not None:
        return parse_timestamp(f"{side}Timestamp", text, latest_if_none=latest_if_none)
    if (text := given.text(f"{side}OffsetsByTimestamp")) is not None:
        return parse_timestamps(f"{side}OffsetsByTimestamp", text, latest_if_none=latest_if_none)
    if (text := given.text(f"{side}Offsets")) is not None:
        return parse_offsets(f"{side}Offsets", text)
    return OffsetLimit(option=f"{side}Offsets", everywhere=default)


def _check_order(starting: OffsetLimit, ending: OffsetLimit) -> None:
    if starting.by_partition is None or ending.by_partition is None:
        return
    if starting.are_timestamps != ending.are_timestamps:
        return
    if starting.by_partition.keys() != ending.by_partition.keys():
        raise ConfigError(f"{starting.option} and {ending.option} name different partitions: name the same in both")
    for (topic, index), start in starting.by_partition.items():
        end = ending.by_partition[topic, index]
        if 0 <= end < start:
            raise ConfigError(
                f"partition {index} of topic '{topic}' would begin at {start} ({starting.option}) and end at {end} "
                f"({ending.option}): swap them"
            )


def _subscription(given: Given) -> Subscription:
    found = [name for name in _SUBSCRIPTIONS if given.text(name) is not None]
    if len(found) != 1:
        many = "only one" if found else "one"
        raise ConfigError(f"{many} of the options {', '.join(_SUBSCRIPTIONS)} must be given: it says what to read")
    text = (given.text(found[0]) or "").strip()
    if found == ["assign"]:
        return Subscription(assigned=parse_assignment("assign", text))
    if found == ["subscribe"]:
        topics = [topic.strip() for topic in text.split(",") if topic.strip()]
        if not topics:
            raise ConfigError("subscribe names no topic: give names with commas between")
        return Subscription(topics=topics)
    if not text:
        raise ConfigError("subscribePattern is empty: give a regular expression that the names match")
    try:
        re.compile(text)
    except re.error as exc:
        raise ConfigError(f"subscribePattern '{text}' is not a regular expression: {exc}") from exc
    return Subscription(pattern=text)


def bucket_options(given: Given) -> BucketOptions:
    store = given.text("store")
    if store is None:
        needed = "the option store is required: the bucket of the broker, as s3://BUCKET/PREFIX or file:PATH"
        raise ConfigError(needed if given.values else f"{needed}. {OF_A_TABLE}")
    try:
        url = StoreUrl.parse(store)
    except ValueError as exc:
        raise ConfigError(f"store: {exc}") from exc
    return BucketOptions(
        url=url,
        endpoint=given.text("s3Endpoint"),
        region=given.text("s3Region"),
        path_style=given.flag("s3PathStyle", False) if given.text("s3PathStyle") is not None else None,
        ca_file=given.text("s3CaFile"),
        credentials=_credentials(given),
    )


def _credentials(given: Given) -> S3Credentials | None:
    key_id, secret = given.text("s3AccessKeyId"), given.text("s3SecretAccessKey")
    token = given.text("s3SessionToken")
    if key_id is None and secret is None and token is None:
        return None
    if not key_id or not secret:
        raise ConfigError("s3AccessKeyId and s3SecretAccessKey belong together: give both, or neither")
    return S3Credentials(access_key_id=key_id, secret_access_key=secret, session_token=token)


def reads_committed_only(given: Given) -> bool:
    levels: dict[str, str] = {}
    for name in ("isolationLevel", "kafka.isolation.level"):
        if (text := given.text(name)) is not None:
            levels[name] = level = text.strip().lower()
            if level not in _ISOLATION_LEVELS:
                raise ConfigError(f"{name} is {' or '.join(_ISOLATION_LEVELS)}, not '{level}'")
    if len(set(levels.values())) > 1:
        raise ConfigError("isolationLevel and kafka.isolation.level say different things: give one of them")
    return "read_uncommitted" not in levels.values()


def freshness_of(given: Given) -> Freshness:
    text = given.text("freshness")
    if text is None:
        return Freshness.BUCKET
    try:
        return Freshness(text.strip().lower())
    except ValueError:
        raise ConfigError(f"freshness is {' or '.join(Freshness)}, not '{text}'") from None


def brokers_of(given: Given) -> BrokerOptions | None:
    return broker_options(given.values) if freshness_of(given) is Freshness.BROKER else None


def is_transactional(given: Given) -> bool:
    transactional = given.flag("transactional", False)
    if not transactional and given.text("transactionalId") is not None:
        raise ConfigError("transactionalId belongs to transactional=true: set that, or leave it out")
    return transactional
