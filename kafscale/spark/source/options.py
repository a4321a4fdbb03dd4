"""The options of `format("kafscale")`: names, defaults, precedence and errors of Spark's Kafka source, and a few more.

Names are case-insensitive. Every one that there is stands in `OPTIONS`, from which `docs/reference/spark-options.md` is
made (`python -m kafscale.spark.source.reference`). What is wrong with a query is told before it begins, as a
ConfigError.
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
from kafscale.store.s3.sigv4 import Credentials

FORMAT = "kafscale"  # what Spark knows the source by

logger = logging.getLogger(__name__)

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_MS_OF = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@attrs.frozen(kw_only=True)
class Option:
    """One option. `default` is as a user would write it; None if there is none."""

    name: str
    used_in: str  # "read", "batch", "stream" or "write"
    doc: str
    default: str | None = None


OPTIONS: Sequence[Option] = (
    Option(
        name="store", used_in="read", doc="The bucket, as the broker's `--store`: `s3://BUCKET/PREFIX` or `file:PATH`."
    ),
    Option(
        name="namespace", used_in="read", default=NAMESPACE_DEFAULT, doc="The namespace of the topics in the bucket."
    ),
    Option(
        name="s3Endpoint",
        used_in="read",
        doc="URL of the store, perhaps with a path before the bucket; without it, AWS.",
    ),
    Option(name="s3Region", used_in="read", doc="Without it, what AWS SDKs would take, or us-east-1."),
    Option(name="s3PathStyle", used_in="read", doc="Whether the bucket is in the path, not in the host's name."),
    Option(name="s3CaFile", used_in="read", doc="Certificates to trust, for an endpoint of your own."),
    Option(name="s3AccessKeyId", used_in="read", doc="Without it, each process looks where AWS SDKs do."),
    Option(name="s3SecretAccessKey", used_in="read", doc="Belongs to `s3AccessKeyId`."),
    Option(name="s3SessionToken", used_in="read", doc="Belongs to `s3AccessKeyId`, if it is temporary."),
    Option(name="subscribe", used_in="read", doc="Topics, with commas between. One of this and the two following."),
    Option(name="subscribePattern", used_in="read", doc="A regular expression that names of topics match as a whole."),
    Option(name="assign", used_in="read", doc='Partitions: `{"topic":[0,1]}`.'),
    Option(
        name="startingOffsets",
        used_in="read",
        default="earliest; latest for a stream",
        doc='Where to begin: `earliest`, `latest` (streams alone), or `{"topic":{"0":23,"1":-2}}` for all partitions, '
        "where -2 is earliest and -1 latest. A stream that is restarted goes on where it was.",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        used_in="read",
        doc='Goes before `startingOffsets`: milliseconds since the epoch, `{"topic":{"0":1000}}`. A partition begins '
        "at its first record that is as late.",
    ),
    Option(name="startingTimestamp", used_in="read", doc="Goes before both: one for all partitions."),
    Option(
        name="startingOffsetsByTimestampStrategy",
        used_in="read",
        default="error",
        doc="What if no record of a partition is as late: `error`, or `latest` to begin at its end.",
    ),
    Option(
        name="endingOffsets",
        used_in="batch",
        default="latest",
        doc="Where to end, exclusive: `latest`, or JSON as `startingOffsets`.",
    ),
    Option(name="endingOffsetsByTimestamp", used_in="batch", doc="Goes before `endingOffsets`; JSON of milliseconds."),
    Option(name="endingTimestamp", used_in="batch", doc="Goes before both: one for all partitions."),
    Option(
        name="failOnDataLoss",
        used_in="read",
        default="true",
        doc="Whether offsets that are not there any more, or can't be read, end the query, or are logged and left out.",
    ),
    Option(
        name="isolationLevel",
        used_in="read",
        default="read_committed",
        doc="`read_committed` leaves out what was aborted, and ends before the first transaction that is open; "
        "`read_uncommitted` reads the records of all transactions, as Spark's Kafka source does by default. Without "
        "transactions both are the same.",
    ),
    Option(
        name="freshness",
        used_in="read",
        default="bucket",
        doc="`bucket` reads all that is acknowledged in the bucket: segments, and behind them the write-ahead log of "
        "a broker with `--durability s3-wal`. `segments` reads what was flushed alone; of brokers in the other modes "
        "both are the same. `broker` reads segments, and fetches what is behind them from the brokers of "
        "`kafka.bootstrap.servers`: all that is acknowledged, in every mode.",
    ),
    Option(name="includeHeaders", used_in="read", default="false", doc="Whether there is a column `headers`."),
    Option(
        name="valueFormat",
        used_in="read",
        doc="`avro`, `protobuf` or `json`: values begin with the id of their schema in a registry, and a column "
        "`decoded` of `value` and `error` is added. [Decode values](../how-to/spark-values.md).",
    ),
    Option(name="schemaRegistryUrl", used_in="read", doc="Needed by `valueFormat`; several with commas between."),
    Option(
        name="schemaRegistryBasicAuth",
        used_in="read",
        doc="`user:password`. Without this and the three following, `KAFSCALE_SCHEMA_REGISTRY_BASIC_AUTH` and "
        "`KAFSCALE_SCHEMA_REGISTRY_BEARER_TOKEN` of the driver's environment count.",
    ),
    Option(name="schemaRegistryBasicAuthFile", used_in="read", doc="A file of the driver that has it."),
    Option(name="schemaRegistryBearerToken", used_in="read", doc="In place of `schemaRegistryBasicAuth`."),
    Option(name="schemaRegistryBearerTokenFile", used_in="read", doc="A file of the driver that has it."),
    Option(name="schemaRegistryCaFile", used_in="read", doc="Certificates to trust, for a registry of your own."),
    Option(
        name="schemaRegistryConfigFile",
        used_in="read",
        doc="A file of the driver by the names of Confluent's clients: `basic.auth.user.info`, `bearer.auth.token`, "
        "tokens of an issuer, and `ssl.…` for authorities and a certificate of your own. "
        "[Which names](../how-to/spark-values.md#a-registry-that-is-secured).",
    ),
    Option(
        name="valueSubject",
        used_in="read",
        default="TOPIC-value",
        doc="Whose schema values are read into. Has no default for several topics, or a pattern.",
    ),
    Option(
        name="valueSchemaVersion", used_in="read", default="latest", doc="Of the subject, as it is when a query begins."
    ),
    Option(name="valueSchema", used_in="read", doc="The schema that values are read into, in place of a subject."),
    Option(
        name="valueMessage", used_in="read", doc="Protobuf: the full name of the message; without it, the first one."
    ),
    Option(
        name="valueValidate",
        used_in="read",
        default="false",
        doc="JSON: hold each value to the schema that it was written by, which takes ten times as long.",
    ),
    Option(name="minPartitions", used_in="read", doc="At least so many tasks, as far as there are batches for them."),
    Option(name="maxRecordsPerPartition", used_in="read", doc="At most about so many records a task, cut at batches."),
    Option(name="maxOffsetsPerTrigger", used_in="stream", doc="At most so many offsets a batch, shared by size."),
    Option(name="maxBytesPerTrigger", used_in="stream", doc="At most about so many bytes a batch, as they are stored."),
    Option(name="minOffsetsPerTrigger", used_in="stream", doc="No batch before there are so many offsets to read …"),
    Option(
        name="maxTriggerDelay", used_in="stream", default="15m", doc="… or so much time has gone: `30s`, `15m`, `1h`."
    ),
    Option(
        name="warnOfAvailableNow",
        used_in="stream",
        default="true",
        doc="Whether warnings say what `Trigger.AvailableNow` leaves out on Spark 4.1, where it has one batch: the "
        "last results of a query with state, and records past a limit. `false` is for a query without state that is "
        "started again until nothing is left.",
    ),
    Option(
        name="pushFilters",
        used_in="batch",
        default="false",
        doc="Whether conditions on `partition`, `offset` and `timestamp` spare reading. One query per `load()`; needs "
        "`spark.sql.python.filterPushdown.enabled`.",
    ),
    Option(
        name="pushedFiltersDirectory",
        used_in="batch",
        doc="With `pushFilters`: a directory of the driver, where the conditions of each scan of a `load()` are noted, "
        "so that one query may scan it several times, each time with a condition. `kafscale sql` gives it.",
    ),
    Option(
        name="maxScanBytes",
        used_in="batch",
        doc="A query that would read more of the bucket fails before it begins, and says how much it would be.",
    ),
    Option(name="groupIdPrefix", used_in="read", doc="Accepted and ignored: nothing here has a consumer group."),
    Option(
        name="kafka.isolation.level",
        used_in="read",
        doc="`isolationLevel` by the name that it has in the Kafka source. Give one of the two.",
    ),
    Option(
        name="kafka.bootstrap.servers",
        used_in="write",
        doc="The broker to produce through; required for writing, and for reading with `freshness=broker`.",
    ),
    Option(
        name="kafkaConfigFile",
        used_in="write",
        doc="A file of the driver with Kafka's client settings, as `--command-config`: `security.protocol`, `ssl.…` "
        "and `sasl.…` count, and options go before them. So no password is in a program or a plan.",
    ),
    Option(name="topic", used_in="write", doc="The topic that rows go to; goes before the column `topic`."),
    Option(
        name="transactional",
        used_in="write",
        default="false",
        doc="`true`: all rows of a micro-batch, or of one `df.write`, are written exactly once, in transactions. [What "
        "that takes](../how-to/spark.md#exactly-once).",
    ),
    Option(
        name="transactionalId",
        used_in="write",
        default="kafscale-spark-QUERY",
        doc="With `transactional`: what fences others that write the same. A stream has its own, by the id in its "
        "checkpoint; a write that is no stream must be given one, which a repeated write has again.",
    ),
    Option(
        name="kafka.*",
        used_in="write",
        doc="Settings of the producer, by librdkafka's names; those of TLS and SASL by Java's, too: [how to log in]"
        "(../how-to/spark.md#a-broker-that-is-secured). For reading, accepted and ignored with one warning, "
        "but for those of TLS and SASL with `freshness=broker`.",
    ),
)

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
_NAMES = {each.name.lower(): each.name for each in OPTIONS if not each.name.endswith("*")}
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
    """What a user has set, by case-insensitive names. Raises ConfigError for a name that there is not."""

    def __init__(self, options: Mapping[str, str]) -> None:
        options = _without_table(options)
        self.values = {name.lower(): value for name, value in options.items()}
        self._has_warned = False
        known = _NAMES.keys() | {name.lower() for name in ACCEPTED}
        for name in options:
            if name.lower() not in known and not name.lower().startswith("kafka."):
                raise _unknown(name)

    def text(self, name: str) -> str | None:
        """None if it was not set."""
        return self.values.get(name.lower())

    def flag(self, name: str, default: bool) -> bool:
        """Raises ConfigError."""
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise ConfigError(f"{name} is true or false, not '{text}'")
        return text.strip().lower() == "true"

    def count(self, name: str) -> int | None:
        """Positive. Raises ConfigError."""
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
        """Raises ConfigError."""
        text = self.text(name) or default
        match = _DURATION.fullmatch(text.strip().lower())
        if match is None:
            raise ConfigError(f"{name} is a time like 30s, 15m or 1h, not '{text}'")
        return int(match[1]) * _MS_OF[match[2] or "ms"]

    def warn_of_ignored(self) -> None:
        """One warning for all that does nothing here, the first time."""
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
    """Return what the user has set. Only tables come with a provider."""
    if "provider" not in {name.lower() for name in options}:
        return options
    return {
        name: value
        for name, value in options.items()
        if name.lower() not in _OF_TABLES and not name.lower().startswith("option.")
    }


def _unknown(name: str) -> ConfigError:
    names = {**_NAMES, **{each.lower(): each for each in ACCEPTED}}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    if near:
        return ConfigError(f"there is no option '{name}'; did you mean '{names[near[0]]}'?")
    return ConfigError(f"there is no option '{name}'; there are: {', '.join(_NAMES.values())}")


class Freshness(StrEnum):
    """Up to where records are read: all that is acknowledged in the bucket, or at brokers, or what has been flushed."""

    BUCKET = "bucket"
    SEGMENTS = "segments"
    BROKER = "broker"


@attrs.frozen(kw_only=True)
class ReadOptions:
    """What batches and streams have in common; travels to the tasks."""

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
        """Raises ConfigError."""
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
    """Where a batch query begins and ends, and how much it may read."""

    starting: OffsetLimit
    ending: OffsetLimit
    max_scan_bytes: int | None = None

    @classmethod
    def of(cls, given: Given) -> BatchOptions:
        """Raises ConfigError."""
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
    """Where a stream begins, and how fast it goes."""

    starting: OffsetLimit
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    warns_of_available_now: bool = True

    @classmethod
    def of(cls, given: Given) -> StreamOptions:
        """Raises ConfigError."""
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
        """The names of those limits that are set."""
        named = {
            "maxOffsetsPerTrigger": self.max_offsets,
            "maxBytesPerTrigger": self.max_bytes,
            "minOffsetsPerTrigger": self.min_offsets,
        }
        return [name for name, value in named.items() if value is not None]


def _limit(given: Given, side: str, default: int) -> OffsetLimit:
    """The order of precedence is that of the Kafka source."""
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
        topics = [each.strip() for each in text.split(",") if each.strip()]
        if not topics:
            raise ConfigError("subscribe names no topic: give names with commas between")
        return Subscription(topics=topics)
    if not text:
        raise ConfigError("subscribePattern is empty: give a regular expression that the names match")
    try:
        re.compile(text)
    except re.error as exc:
        raise ConfigError(f"subscribePattern '{text}' is no regular expression: {exc}") from exc
    return Subscription(pattern=text)


def bucket_options(given: Given) -> BucketOptions:
    """Return where the bucket is. Raises ConfigError."""
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


def _credentials(given: Given) -> Credentials | None:
    key_id, secret = given.text("s3AccessKeyId"), given.text("s3SecretAccessKey")
    token = given.text("s3SessionToken")
    if key_id is None and secret is None and token is None:
        return None
    if not key_id or not secret:
        raise ConfigError("s3AccessKeyId and s3SecretAccessKey belong together: give both, or neither")
    return Credentials(access_key_id=key_id, secret_access_key=secret, session_token=token)


def reads_committed_only(given: Given) -> bool:
    """Tell whether what was aborted, and what is not decided yet, is left out. Raises ConfigError."""
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
    """Return up to where records are read. Raises ConfigError."""
    text = given.text("freshness")
    if text is None:
        return Freshness.BUCKET
    try:
        return Freshness(text.strip().lower())
    except ValueError:
        raise ConfigError(f"freshness is {' or '.join(Freshness)}, not '{text}'") from None


def brokers_of(given: Given) -> BrokerOptions | None:
    """Return how brokers are asked; None if they are not. Raises ConfigError."""
    return broker_options(given.values) if freshness_of(given) is Freshness.BROKER else None


def is_transactional(given: Given) -> bool:
    """Tell whether rows are written in transactions. Raises ConfigError."""
    transactional = given.flag("transactional", False)
    if not transactional and given.text("transactionalId") is not None:
        raise ConfigError("transactionalId belongs to transactional=true: set that, or leave it out")
    return transactional
