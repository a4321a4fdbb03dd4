"""All options of `kafscale serve`, with their defaults and trade-offs.

`Settings` is a frozen value that is checked when it is made. Durations are floats in seconds where trio waits for them
and whole milliseconds where Kafka's protocol carries them; sizes are bytes. Credentials are not options, since a list
of processes shows arguments.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from kafscale.config.limits import CoordinatorSettings, Limits, check_coordinator
from kafscale.config.option import AddressOrNone, Milliseconds, Option, PrincipalText, Seconds, Size, option, options_of
from kafscale.config.security_settings import SaslSettings, SslSettings, check_listeners, check_ssl, protocol_of
from kafscale.config.units import GIB, KIB, MAX_TIMEOUT_MS, MIB
from kafscale.config.values import (
    DEFAULT_LISTENER_NAME,
    Address,
    AuthorizerKind,
    Durability,
    Listener,
    ListenerProtocol,
    LogFormat,
    LogLevel,
    SecurityProtocol,
    StoreEncryption,
    StoreUrl,
    is_endpoint,
    split_url,
)
from kafscale.errors import ConfigError

# Options that say where a bucket is, for commands and processes that read it.
BUCKET_OPTIONS = ("store", "namespace", "s3_endpoint", "s3_region", "s3_path_style", "s3_ca_file")


def _store_in_data_dir(settings: Settings) -> StoreUrl:
    return StoreUrl(scheme="file", path=settings.data_dir / "bucket")


@attrs.frozen(kw_only=True)
class Settings:
    """Settings of one broker. Raises ConfigError for a value out of bounds, or two that contradict each other."""

    listeners: tuple[Listener, ...] = option(
        (Listener(DEFAULT_LISTENER_NAME, "127.0.0.1", 9092),),
        "Address to accept Kafka clients on, as [NAME=]HOST:PORT; repeatable. Port 0 picks a free port.",
        why="The default name is PLAINTEXT. The names PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL set how the listener "
        "is secured. Kafka: listeners.",
        name="listen",
    )
    listener_security_protocols: tuple[ListenerProtocol, ...] = option(
        (),
        "Security protocol of a listener with any other name, as NAME=PROTOCOL; repeatable. Default: PLAINTEXT.",
        why="Kafka: listener.security.protocol.map.",
        name="listener-security-protocol",
    )
    advertised_listeners: tuple[Listener, ...] = option(
        (),
        "Address that clients of a listener connect to, as NAME=HOST:PORT; repeatable.",
        why="Default: the listener's own address, or for a wildcard the address that the client reached. Kafka: "
        "advertised.listeners.",
        name="advertised-listener",
    )
    admin_listen: Address = option(
        Address("127.0.0.1", 9644),
        "Address of the admin HTTP server: /healthz, /readyz, /metrics, and /flush for `kafscale flush`.",
    )
    admin_ssl: bool = option(
        False,
        "Serve the admin HTTP server over TLS, with --ssl-certificate-file. Clients need no certificate.",
    )
    admin_token_file: Path | None = option(
        None,
        "File with the token that requests to the admin server need (Authorization: Bearer), except for /healthz and "
        "/readyz. Default: no token is needed.",
        why="Probes of an orchestrator send no token.",
    )
    console: AddressOrNone = option(
        Address("127.0.0.1", 8080),
        "Address of the web console, which is a process of its own; `none` for no console.",
        why="It starts with the first request of a browser. It needs the extra `console`. `kafscale console` runs one "
        "elsewhere.",
    )
    data_dir: Path = option(
        Path("kafscale-data"),
        "Directory of the write-ahead log and the metadata; locked while the broker runs.",
        why="With --durability wal, a produce takes about one fsync of its disk.",
    )
    store: StoreUrl = option(
        attrs.Factory(_store_in_data_dir, takes_self=True),
        "Where segments are stored: file:PATH, s3://BUCKET/PREFIX or memory:SIZE. Default: `bucket` in --data-dir.",
        why="memory: is for tests and benchmarks. It is lost at exit, and above SIZE the oldest objects are dropped.",
    )
    namespace: str = option(
        "default",
        "First part of every key below the store's prefix, so that several clusters can share a bucket.",
    )
    s3_endpoint: str | None = option(
        None,
        "URL of an S3-compatible store, such as http://127.0.0.1:9000 or, behind a gateway, https://HOST/PATH. "
        "Default: Amazon's for the region.",
    )
    s3_region: str | None = option(
        None,
        "Region of the bucket. Default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1.",
    )
    s3_path_style: bool = option(
        attrs.Factory(lambda settings: settings.s3_endpoint is not None, takes_self=True),
        "Put the bucket into the path instead of the host name. Default: true if --s3-endpoint is given.",
        why="MinIO and most other stores need it; Amazon needs host names.",
    )
    s3_create_bucket: bool = option(False, "Create the bucket at start if it is missing.")
    s3_ca_file: Path | None = option(
        None, "PEM file of the authorities to trust for the endpoint. Default: the system's."
    )
    s3_sse: StoreEncryption | None = option(
        None,
        "Ask the store to encrypt each object: AES256 with its own keys, aws:kms:KEY with a key of its key service. "
        "Default: the bucket's configuration.",
        why="Existing objects stay as they are. MinIO needs a KMS for either.",
    )
    s3_concurrency: int = option(
        64,
        "Concurrent operations of the object store in the whole broker; 0 for no limit.",
        why="At 20 ms an operation, 64 do 3,200 operations a second. Lower it for a small MinIO or a slow provider.",
        least=0,
        most=65_536,
    )
    s3_multipart_bytes: Size = option(
        32 * MIB,
        "Upload objects larger than this in parts of 16 MiB; 0 for never, for a store without multipart uploads.",
        why="One connection to S3 carries 50 to 100 MB/s. Each part is a PUT, and there are two requests more.",
        least=0,
    )
    durability: Durability = option(
        Durability.WAL,
        "When a produce is acknowledged: wal (synced to the local disk), s3-wal (in an object of the write-ahead log "
        "in the bucket, with those of all partitions) or segment (in its partition's segment in the bucket).",
        why="wal takes about one fsync and relies on the disk until the next flush; the others don't. s3-wal needs few "
        "PUTs for any number of partitions; segment needs two for each flush of each partition.",
    )
    wal_sync_interval_seconds: Seconds = option(
        0.002,
        "Longest that a batch waits for others to share its fsync; an upper bound, not a delay. 0 for no wait.",
        why="By default, Kafka never syncs (log.flush.interval.messages).",
        least=0,
        most=10,
    )
    wal_segment_bytes: Size = option(
        64 * MIB,
        "Size of one file of the write-ahead log.",
        why="A file is deleted when all its batches are in the bucket: smaller frees disk sooner, larger rotates less "
        "often.",
        least=64 * KIB,
        most=2 * GIB,
    )
    s3_wal_interval_seconds: Seconds = option(
        0.25,
        "With --durability s3-wal, longest that a batch waits for others to share its object while another object is "
        "being uploaded. If none is, it is uploaded at once.",
        why="Below 8 MiB in this time there is at most one PUT in it, or in the time of a PUT if that is shorter.",
        least=0,
        most=10,
    )
    s3_wal_min_interval_seconds: Seconds = option(
        0.0,
        "With --durability s3-wal, least time between the PUTs of two objects that are not full; the first one after "
        "a pause is uploaded at once.",
        why="While clients produce, one PUT follows the other: 20 a second at 50 ms, or 260 USD a month. 200ms bounds "
        "it at 65 USD until objects are full, and a produce takes up to 200 ms longer.",
        least=0,
        most=10,
    )
    s3_wal_flush_objects_count: int = option(
        256,
        "With --durability s3-wal, flush a partition before --flush-interval after this number of log objects of at "
        "most 64 KiB, or eight for each partition with unflushed records if that is more. 0 for never.",
        why="Spark, a start and a new leader read unflushed records object by object: a bucket that answers in 5 ms "
        "gets 2,000 in 10 s. It adds at most a quarter to the log's PUTs, 4 in 100 with three partitions.",
        least=0,
        most=1_000_000,
    )
    wal_max_bytes: Size = option(
        4 * GIB,
        "Size of the write-ahead log at which produces wait, and after 20 s get a retriable error. From three quarters "
        "of it, --flush-objects-per-minute no longer delays flushes.",
        why="It bounds how long the store may be away: at 10 MiB/s, 4 GiB are 7 minutes.",
        least=256 * KIB,
    )
    chunk_pool_bytes: Size = option(
        512 * MIB,
        "Memory for record batches that are not in the bucket yet, allocated at start. While it is full, producers "
        "wait.",
        why="It must hold throughput times flush interval: 50 MiB/s for 10 s.",
        least=1 * MIB,
    )
    cache_bytes: Size = option(
        attrs.Factory(lambda settings: 64 * MIB if settings.store.scheme == "s3" else 0, takes_self=True),
        "Memory for ranges of segments that were fetched, or read ahead of consumers; 0 for none. Default: 64MiB for a "
        "store on S3, else 0.",
        why="Consumers that follow each other share it. Up to half is for read-ahead: 32 MiB are the full "
        "--readahead-bytes of four consumers.",
        least=0,
    )
    cache_directory: Path | None = option(
        None,
        "Directory for ranges of segments that don't fit into --cache-bytes; emptied at the next start. Default: none.",
        why="It saves GETs of data that is read more than once and doesn't fit into memory.",
    )
    cache_disk_bytes: Size = option(
        10 * GIB,
        "Most bytes in --cache-directory.",
        least=1 * MIB,
    )
    readahead_bytes: Size = option(
        attrs.Factory(lambda settings: 8 * MIB if settings.store.scheme == "s3" else 0, takes_self=True),
        "Most bytes to read ahead of a consumer that reads a partition in order; 0 for none. Default: 8MiB for a store "
        "on S3, else 0.",
        why="At 20 ms and 80 MB/s a connection, fetches of 1 MiB get 30 MiB/s without it and 150 with it. It takes up "
        "to half of --cache-bytes.",
        least=0,
    )
    fetch_buffer_bytes: Size = option(
        128 * MIB,
        "Memory for bytes that were read for fetches and not sent yet; while it is full, fetches wait.",
        why="64 operations of 1 MiB, and as much being sent. Bytes in the chunk pool or the cache don't count.",
        least=1 * MIB,
    )
    segment_bytes: Size = option(
        64 * MIB,
        "Flush a partition to the bucket when it has this many unflushed bytes.",
        why="Kafka: log.segment.bytes, 1 GiB. Larger means fewer PUTs, and more memory until then.",
        least=1 * KIB,
        most=2 * GIB,
    )
    segment_merge_bytes: Size = option(
        64 * MIB,
        "Merge neighbouring segments smaller than half of this into one of about this size; 0 for never.",
        why="There are fewer objects to list and read, and most bytes are written once or twice more. A merge takes "
        "this much memory.",
        least=0,
        most=1 * GIB,
    )
    flush_interval_seconds: Seconds = option(
        10.0,
        "Flush a partition with unflushed records to the bucket this often; see --flush-objects-per-minute.",
        why="It bounds how far Spark is behind, and what a lost disk loses. An active partition costs two PUTs each "
        "time.",
        least=0.001,
    )
    flush_objects_per_minute: int = option(
        240,
        "Most objects that flushes by age write in a minute, two for each flush. Further partitions wait for longer "
        "than --flush-interval, the oldest first. Not with --durability segment.",
        why="240 are 52 USD a month, at 0.005 a thousand. Waiting records are in the write-ahead log.",
        least=4,
        most=100_000_000,
    )
    compaction_check_interval_seconds: Seconds = option(
        15.0,
        "How often to look for partitions of compacted topics to compact.",
        why="Kafka: log.cleaner.backoff.ms, 15 s.",
        least=0.001,
    )
    log_cleaner_dedupe_buffer_bytes: Size = option(
        32 * MIB,
        "Memory for the keys of one compaction, 32 bytes each.",
        why="Kafka: log.cleaner.dedupe.buffer.size, 128 MiB. The next compaction does the rest.",
        name="log-cleaner-dedupe-buffer-size",
        least=1 * MIB,
        most=4 * GIB,
    )
    segment_delete_delay_ms: Milliseconds = option(
        300_000,
        "How long a deleted segment's objects stay in the bucket.",
        why="Kafka: log.segment.delete.delay.ms, 1 minute. Running fetches and Spark jobs can finish.",
        least=0,
    )
    producer_byte_rate: Size = option(
        0,
        "Bytes per second that all connections of a client id may produce together; 0 for no limit.",
        why="Kafka: the client quota producer_byte_rate. Replies have throttle_time_ms, and reading pauses (KIP-219).",
        least=0,
    )
    consumer_byte_rate: Size = option(
        0,
        "Bytes per second that all connections of a client id may fetch together; 0 for no limit.",
        why="Kafka: the client quota consumer_byte_rate.",
        least=0,
    )
    authorizer: AuthorizerKind = option(
        AuthorizerKind.NONE,
        "Authorizer: none (every client may do everything) or acl (access control lists).",
        why="Kafka: authorizer.class.name. Lists are added by `kafscale acls` or kafka-acls.sh.",
    )
    super_users: tuple[PrincipalText, ...] = option(
        (),
        "User who may do everything without a list, as User:NAME; repeatable. A comma belongs to the name unless "
        "TYPE: follows it.",
        why="Kafka: super.users. A super user adds the first list.",
        name="super-user",
    )
    allow_everyone_if_no_acl_found: bool = option(
        False,
        "Let every client use resources that have no list.",
        why="Kafka: allow.everyone.if.no.acl.found, false.",
    )
    auto_create_topics: bool = option(
        True,
        "Create a topic when a client asks for it by name and its request allows that.",
        why="Kafka: auto.create.topics.enable, true.",
    )
    default_partitions_count: int = option(
        1,
        "Number of partitions of a topic that is created without one.",
        why="Kafka: num.partitions, 1.",
        least=1,
        most=10_000,
    )
    offsets_topic_partitions_count: int = option(
        50,
        "Number of partitions of __consumer_offsets, which is created when it is first needed.",
        why="Kafka: offsets.topic.num.partitions, 50. It can't be changed afterwards.",
        name="offsets-topic-num-partitions",
        least=1,
        most=10_000,
    )
    transaction_state_partitions_count: int = option(
        50,
        "Number of partitions of __transaction_state, which is created when it is first needed.",
        why="Kafka: transaction.state.log.num.partitions, 50. It can't be changed afterwards.",
        name="transaction-state-log-num-partitions",
        least=1,
        most=10_000,
    )
    transaction_max_timeout_ms: Milliseconds = option(
        900_000,
        "Longest transaction timeout that a producer may ask for.",
        why="Kafka: transaction.max.timeout.ms, 15 minutes. Consumers at read_committed wait for an open transaction.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    broker_id: int = option(0, "Id of this broker.", why="Kafka: node.id.", least=0, most=2**31 - 1)
    several_brokers: bool = option(
        False,
        "Share the bucket with other brokers, each with its own id; each leads a part of the partitions. "
        "`kafscale brokers unshare` goes back to one broker.",
    )
    inter_broker_listener: str | None = option(
        None,
        "With several brokers: the name of the listener through which brokers connect to each other, the same on all. "
        "Default: the first one with the security protocol of --inter-broker-config, or PLAINTEXT.",
        why="Kafka: inter.broker.listener.name.",
    )
    inter_broker_config: Path | None = option(
        None,
        "File of Kafka client settings with which this broker connects to other brokers: security.protocol, ssl.… and "
        "sasl.…. With access control lists, its user needs ClusterAction on the cluster.",
        why="Read again when it, or a file that it names, changes. Kafka: security.inter.broker.protocol, "
        "sasl.mechanism.inter.broker.protocol.",
    )
    broker_session_timeout_seconds: Seconds = option(
        3.0,
        "With several brokers: how long a broker may send no heartbeat before it is declared dead. Others then lead "
        "its partitions, if the bucket has all that it acknowledged.",
        why="Kafka: broker.session.timeout.ms, 9 s. Here a heartbeat costs no write, and a mistake loses nothing.",
        least=0.5,
        most=300,
    )
    broker_store_timeout_seconds: Seconds = option(
        4.0,
        "With several brokers, and s3-wal or segment: how long the store may leave a broker without an answer, while "
        "it answers the others, before it is declared dead.",
        why="Most clients wait 30 s for an answer. Kafka gives up a log directory that can't be written at once.",
        least=2,
        most=300,
    )
    processes_count: int = option(
        1,
        "Number of brokers to run on this machine, each in a process, with a supervisor. They share the budgets of "
        "memory, disk and connections.",
        why="Ids and ports count up from --broker-id and --listen. More processes than cores don't help.",
        least=1,
        most=256,
    )
    rack: str | None = option(
        None,
        "Rack or availability zone of this broker. Default: none.",
        why="Kafka: broker.rack.",
    )
    shutdown_timeout_seconds: Seconds = option(
        8.0,
        "Longest time for a shutdown; records that are not in the bucket then stay in the write-ahead log.",
        why="Docker kills after 10 s.",
        least=0,
    )
    log_level: LogLevel = option(LogLevel.INFO, "Least severe log messages to write.")
    log_format: LogFormat = option(LogFormat.TEXT, "Format of log lines on stderr.")
    traces_endpoint: str | None = option(
        None,
        "URL of an OpenTelemetry collector that gets spans by OTLP over HTTP, such as http://127.0.0.1:4318. Default: "
        "nothing is traced.",
        why="Needs the extra `traces`. OTEL_TRACES_SAMPLER and the other variables of OpenTelemetry's SDK apply.",
    )

    # Settings that are not options: few could choose them well. Tests and benches construct other values.
    s3_hedge_percentile: int = 99  # slower uploads get a second attempt: a hundredth more PUTs for a shorter tail
    s3_wal_bytes: int = 8 * MIB  # an object of the log in the bucket goes at this size; it is in memory until then
    orphan_check_interval_seconds: float = 3600.0  # costs a LIST for each thousand objects
    orphan_grace_seconds: float = 3600.0  # least age of an orphan that is deleted; at least file.delete.delay.ms
    auto_create_topics_per_minute_count: int = 600  # a client that asks for thousands of names doesn't create them all
    transaction_cleanup_interval_ms: int = 10_000  # Kafka: transaction.abort.timed.out.transaction.cleanup.interval.ms
    retention_check_interval_seconds: float = 300.0  # Kafka: log.retention.check.interval.ms, the same
    cluster_id: str | None = None  # generated at the first start
    transactional_id_expiration_ms: int = 604_800_000  # Kafka: transactional.id.expiration.ms, 7 days
    ssl: SslSettings = attrs.field(factory=SslSettings)
    sasl: SaslSettings = attrs.field(factory=SaslSettings)
    coordinator: CoordinatorSettings = attrs.field(factory=CoordinatorSettings)
    limits: Limits = attrs.field(factory=Limits)

    def __attrs_post_init__(self) -> None:
        for checked in options():
            checked.check(self.value(checked), given_as=checked.flag)
        check_listeners(self.listeners, self.advertised_listeners, self.listener_security_protocols)
        if self.inter_broker_listener not in (None, *(listener.name for listener in self.listeners)):
            raise ConfigError(
                f"--inter-broker-listener: '{self.inter_broker_listener}' is not a listener; allowed: a name in "
                "--listen"
            )
        if self.admin_listen.wants_tls not in (None, self.admin_ssl):
            url = f"{self.admin_listen.scheme}://{self.admin_listen}"
            wanted = "with --admin-ssl" if self.admin_listen.wants_tls else "https:// with --admin-ssl"
            raise ConfigError(f"--admin-listen: '{url}' contradicts --admin-ssl; allowed: {wanted}, or HOST:PORT")
        check_ssl(
            self.ssl, [listener for listener in self.listeners if self.protocol_of(listener).uses_tls], self.admin_ssl
        )
        _check_store(self)
        if not (self.limits.max_connections_per_ip_count or self.limits.max_connections_per_ip_overrides):
            raise ConfigError(
                "--max-connections-per-ip: '0' refuses every client; allowed: 0 with --max-connections-per-ip-overrides"
            )
        for user in self.super_users:
            if not all(user.partition(":")):
                raise ConfigError(f"--super-user: '{user}' is not a principal; allowed: TYPE:NAME, as in User:alice")
        if self.traces_endpoint is not None:
            _check_traces_endpoint(self.traces_endpoint)
        check_coordinator(self.coordinator, self.text)
        if self.limits.max_message_bytes > min(self.chunk_pool_bytes, self.limits.max_frame_bytes):
            raise ConfigError(
                f"--max-message-bytes: '{self.text('max_message_bytes')}' is too large; allowed: at most "
                f"--chunk-pool-bytes, {self.text('chunk_pool_bytes')}, "
                f"and --max-frame-bytes, {self.text('max_frame_bytes')}"
            )

    def value(self, wanted: Option) -> object:
        holders: tuple[object, ...] = (self, *(getattr(self, name) for name in GROUPS))
        return next(getattr(holder, wanted.attribute) for holder in holders if hasattr(holder, wanted.attribute))

    def text(self, attribute: str) -> str:
        wanted = next(option for option in options() if option.attribute == attribute)
        return wanted.format(self.value(wanted))

    @property
    def names_watched_files(self) -> bool:
        """Tell whether options name files that are read again when they change, or on SIGHUP."""
        return any((self.ssl.ssl_certificate_file, self.admin_token_file, self.inter_broker_config))

    def protocol_of(self, listener: Listener) -> SecurityProtocol:
        """Return how a listener is secured."""
        return protocol_of(listener.name, self.listener_security_protocols)


# Fields of Settings that hold a group of options.
GROUPS: Mapping[str, type[Any]] = {
    "ssl": SslSettings,
    "sasl": SaslSettings,
    "coordinator": CoordinatorSettings,
    "limits": Limits,
}


@cache
def options() -> tuple[Option, ...]:
    return options_of(Settings) + tuple(option for group in GROUPS.values() for option in options_of(group))


def flags_of(settings: Settings, attributes: Container[str]) -> list[str]:
    """Return the arguments that give a command these options as they are; those without a value are left out."""
    arguments: list[str] = []
    for found in options():
        if found.attribute in attributes:
            value: Any = settings.value(found)
            values = [(item,) for item in value] if found.is_repeatable else [value]
            for text in filter(None, map(found.format, values)):
                arguments += [found.flag, text]
    return arguments


def _check_traces_endpoint(endpoint: str) -> None:
    url = split_url(endpoint)
    if url.username or url.password:
        raise ConfigError("--traces-endpoint: has credentials in it; allowed: only in OTEL_EXPORTER_OTLP_HEADERS")
    if not is_endpoint(url):
        raise ConfigError(
            f"--traces-endpoint: '{endpoint}' is not a URL; allowed: http://HOST:PORT or https://HOST:PORT, with a "
            "path if it is not /v1/traces"
        )


def _check_store(settings: Settings) -> None:
    if not settings.namespace or "/" in settings.namespace or settings.namespace in (".", ".."):
        raise ConfigError(
            f"--namespace: '{settings.namespace}' is not a namespace; allowed: a part of a key, without a slash"
        )
    if settings.s3_sse is not None and settings.store.scheme != "s3":
        raise ConfigError(
            f"--s3-sse: '{settings.s3_sse}' is not for --store {settings.store}; allowed: with --store s3://BUCKET"
        )
    if settings.s3_endpoint is None:
        return
    url = split_url(settings.s3_endpoint)
    if url.username or url.password:
        raise ConfigError(
            "--s3-endpoint: has credentials in it; allowed: only in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if not is_endpoint(url):
        raise ConfigError(
            f"--s3-endpoint: '{settings.s3_endpoint}' is not an endpoint; allowed: http://HOST:PORT/PATH or "
            "https://HOST:PORT/PATH, where :PORT and /PATH may be left out"
        )
    if settings.store.scheme != "s3":
        raise ConfigError(
            f"--s3-endpoint: '{settings.s3_endpoint}' is not for --store {settings.store}; "
            f"allowed: with --store s3://BUCKET"
        )
