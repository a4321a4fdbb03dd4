"""All options of `kafscale serve`, with their defaults and trade-offs: the page to read before changing one.

`Settings` is a frozen value and is checked when it is made, wherever it comes from. Durations are floats in seconds
where trio waits for them and whole milliseconds where Kafka's protocol carries them; sizes are bytes. Credentials are
not options: they would be seen in a list of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import attrs

from kafscale.config.limits import CoordinatorSettings, Limits, check_coordinator
from kafscale.config.option import Milliseconds, Option, PrincipalText, Seconds, Size, option, options_of
from kafscale.config.security_settings import SaslSettings, SslSettings, check_listeners, check_ssl, protocol_of
from kafscale.config.units import GIB, KIB, MAX_TIMEOUT_MS, MIB
from kafscale.config.values import (
    DEFAULT_LISTENER_NAME,
    Address,
    AuthorizerKind,
    BalanceBy,
    Durability,
    Listener,
    ListenerProtocol,
    LogFormat,
    LogLevel,
    ReplicationFactorPolicy,
    SecurityProtocol,
    StoreEncryption,
    StoreUrl,
    is_endpoint,
    split_url,
)
from kafscale.errors import ConfigError


def _store_in_data_dir(settings: Settings) -> StoreUrl:
    return StoreUrl(scheme="file", path=settings.data_dir / "bucket")


@attrs.frozen(kw_only=True)
class Settings:
    """Settings of one broker. Raises ConfigError when a value, or two together, can't be."""

    TITLE: ClassVar[str] = "Settings"  # in the reference

    listeners: tuple[Listener, ...] = option(
        (Listener(DEFAULT_LISTENER_NAME, "127.0.0.1", 9092),),
        "Address to accept Kafka clients on, as [NAME=]HOST:PORT; repeatable. Port 0 picks a free one.",
        why="Without a name it is PLAINTEXT. A name that is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL says how the "
        "listener is secured. Kafka: listeners.",
        name="listen",
    )
    listener_security_protocols: tuple[ListenerProtocol, ...] = option(
        (),
        "How the listener of another name is secured, as NAME=PROTOCOL; repeatable. Without one it is PLAINTEXT.",
        why="Kafka: listener.security.protocol.map.",
        name="listener-security-protocol",
    )
    advertised_listeners: tuple[Listener, ...] = option(
        (),
        "Address that clients are told to connect to, as NAME=HOST:PORT, for the listener of that name; repeatable.",
        why="Without one, clients are told the listener's address, or for a wildcard the address that they reached.",
        name="advertised-listener",
    )
    admin_listen: Address = option(
        Address("127.0.0.1", 9644),
        "Address of the admin HTTP server: /healthz, /readyz, /metrics, and /flush for `kafscale flush`.",
    )
    admin_ssl: bool = option(
        False,
        "Serve the admin HTTP server over TLS, with the certificate of --ssl-certificate-file; it asks for none.",
    )
    admin_token_file: Path | None = option(
        None,
        "File with the token that requests to the admin server must bring (Authorization: Bearer), but those to "
        "/healthz and /readyz. Default: none is asked for.",
        why="Probes of an orchestrator bring no token, and what they learn is whether the broker serves.",
    )
    data_dir: Path = option(
        Path("kafscale-data"),
        "Directory of the write-ahead log and the metadata; locked while the broker runs.",
        why="Its disk's fsync is the latency of a produce with --durability wal.",
    )
    store: StoreUrl = option(
        attrs.Factory(_store_in_data_dir, takes_self=True),
        "Where segments live: file:PATH, s3://BUCKET/PREFIX or memory:SIZE. Default: `bucket` in --data-dir.",
        why="memory: forgets everything at exit, and past a SIZE its oldest objects: for tests and benchmarks only.",
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
        why="MinIO and most others that are not Amazon need it; Amazon wants host names.",
    )
    s3_create_bucket: bool = option(False, "Create the bucket at start if it is missing.")
    s3_ca_file: Path | None = option(
        None, "PEM file of the authorities to trust for the endpoint. Default: the system's."
    )
    s3_sse: StoreEncryption | None = option(
        None,
        "Ask the store to encrypt each object: AES256 with keys of its own, aws:kms:KEY with one of its key service. "
        "Default: as the bucket is set up.",
        why="Objects from before keep what they had. MinIO needs a KMS for either.",
    )
    s3_concurrency: int = option(
        64,
        "Operations of the object store under way at once in the whole broker; 0 means no limit.",
        why="At 20 ms an operation, 64 do 3,200 operations a second. Lower it for a small MinIO or a slow provider.",
        least=0,
        most=65_536,
    )
    s3_multipart_bytes: Size = option(
        32 * MIB,
        "Objects larger than this go to S3 in parts of 16 MiB, several at once; 0 for never.",
        why="One connection to S3 carries some 50 to 100 MB/s. Each part is a PUT, and there are two requests more.",
        least=0,
    )
    s3_hedge_percentile: int = option(
        99,
        "An upload that takes longer than this percentile of recent ones gets a second attempt beside it; 0 for never.",
        why="At 99, a hundredth more PUTs for a shorter tail; only while --s3-concurrency leaves a place free.",
        least=0,
        most=99,
    )
    durability: Durability = option(
        Durability.WAL,
        "When a produce is acknowledged: wal (synced to the local disk), s3-wal (in an object of the write-ahead log "
        "in the bucket, with those of all partitions) or segment (in its partition's segment in the bucket).",
        why="wal answers in about the time of an fsync and trusts the disk until the next flush; the others never do. "
        "s3-wal needs few PUTs however many partitions there are; segment needs two for each flush of each.",
    )
    wal_sync_interval_seconds: Seconds = option(
        0.002,
        "Longest that a batch waits for others to share its fsync; an upper bound, not a delay. 0 never waits.",
        why="Kafka syncs never by default (log.flush.interval.messages).",
        least=0,
        most=10,
    )
    wal_segment_bytes: Size = option(
        64 * MIB,
        "Size of one file of the write-ahead log.",
        why="A file is deleted once all in it is in the bucket: smaller frees disk sooner, larger rotates less often.",
        least=64 * KIB,
        most=2 * GIB,
    )
    s3_wal_interval_seconds: Seconds = option(
        0.25,
        "With --durability s3-wal, longest that a batch waits for others to share its object while another one is on "
        "its way; an upper bound, not a delay: when none is, it goes at once.",
        why="At most one PUT in this time, or in that of a PUT if it is shorter, below --s3-wal-bytes.",
        least=0,
        most=10,
    )
    s3_wal_min_interval_seconds: Seconds = option(
        0.0,
        "With --durability s3-wal, least time between PUTs of two objects of the write-ahead log that are not "
        "full; the first one after a pause goes at once. 0 for none.",
        why="One PUT follows the other while something is produced: 20 a second at 50 ms, which is 260 $ a month. With "
        "200ms it is 65 $ at most, until objects fill, and a produce takes up to 200 ms longer.",
        least=0,
        most=10,
    )
    s3_wal_bytes: Size = option(
        8 * MIB,
        "With --durability s3-wal, size at which an object of the write-ahead log goes without waiting.",
        why="Larger means fewer PUTs at high throughput; each is in memory until it is acknowledged.",
        least=64 * KIB,
        most=256 * MIB,
    )
    s3_wal_flush_objects_count: int = option(
        256,
        "With --durability s3-wal, objects of the write-ahead log of at most 64 KiB after which a partition is flushed "
        "before its --flush-interval, whatever --flush-objects-per-minute says; eight for each partition that has "
        "something to flush, if that is more. 0 for never.",
        why="Spark, a start and whoever takes over read what is not flushed, object by object: a bucket that answers "
        "in 5 ms gets 2,000 in 10 s. It adds a quarter to the log's PUTs at most, 4 in 100 with three partitions.",
        least=0,
        most=1_000_000,
    )
    wal_max_bytes: Size = option(
        4 * GIB,
        "Size of the write-ahead log from which produces wait, and after 20 s get a retriable error; at three quarters "
        "of it --flush-objects-per-minute holds nothing back any more, also with --durability s3-wal.",
        why="It bounds how long an outage of the store may last: at 10 MiB/s, 4 GiB are 7 minutes.",
        least=256 * KIB,
    )
    chunk_pool_bytes: Size = option(
        512 * MIB,
        "Memory for record batches that are not in the bucket yet, allocated at start; used up, producers wait.",
        why="Throughput times flush interval is what it must hold: 50 MiB/s for 10 s.",
        least=1 * MIB,
    )
    cache_bytes: Size = option(
        attrs.Factory(lambda settings: 64 * MIB if settings.store.scheme == "s3" else 0, takes_self=True),
        "Memory for ranges of segments that were fetched, or are read ahead of consumers; 0 keeps none. Default: 64MiB "
        "for a store on S3; of others, the kernel keeps what was read.",
        why="It holds what was read for one consumer for those that follow it. Half of it may be what is read ahead: "
        "32 MiB are the full --readahead-bytes of four consumers, or a MiB each of 32.",
        least=0,
    )
    cache_directory: Path | None = option(
        None,
        "Directory for ranges of segments that --cache-bytes has no room for; its files are the broker's own, and are "
        "removed at the next start. Default: none.",
        why="A local disk instead of a GET, for what is read more than once and does not fit into memory.",
    )
    cache_disk_bytes: Size = option(
        10 * GIB,
        "Size of what is in --cache-directory.",
        least=1 * MIB,
    )
    readahead_bytes: Size = option(
        attrs.Factory(lambda settings: 8 * MIB if settings.store.scheme == "s3" else 0, takes_self=True),
        "How far to read ahead of a consumer that goes through a partition in order, at most; 0 for not at all. "
        "Default: 8MiB for a store on S3; the others are not far.",
        why="In quarters, each a GET. At 20 ms and 80 MB/s a connection, fetches of 1 MiB get 30 MiB/s without it and "
        "150 with it. It lives in --cache-bytes, of which it may take half.",
        least=0,
    )
    fetch_buffer_bytes: Size = option(
        128 * MIB,
        "Bytes read from the store or the write-ahead log for fetches and not sent yet; past it fetches wait.",
        why="All of --s3-concurrency with a fetch of 1 MiB each, and as much on its way to consumers. What is in the "
        "chunk pool or in --cache-bytes is counted there instead.",
        least=1 * MIB,
    )
    segment_bytes: Size = option(
        64 * MIB,
        "A partition is flushed to the bucket when it has this much.",
        why="Kafka: log.segment.bytes, 1 GiB. Larger means fewer and cheaper PUTs, and more memory until then.",
        least=1 * KIB,
        most=2 * GIB,
    )
    segment_merge_bytes: Size = option(
        64 * MIB,
        "Segments of less than half of this are merged with their neighbours into one of about this size; 0 for never.",
        why="Fewer objects to list and read, for writing most bytes once or twice more; so much memory while it does.",
        least=0,
        most=1 * GIB,
    )
    flush_interval_seconds: Seconds = option(
        10.0,
        "A partition is flushed to the bucket this often, while it has something; see --flush-objects-per-minute.",
        why="It bounds how far Spark and a lost disk are behind; each active partition costs two PUTs per interval.",
        least=0.001,
    )
    flush_objects_per_minute: int = option(
        240,
        "Objects that flushes by age may write in a minute, two for each; with more active partitions than that is "
        "enough for they wait for longer than --flush-interval, the oldest first. Not with --durability segment.",
        why="240 all the time are 52 US dollars a month, at 0.005 a thousand. The write-ahead log keeps what waits.",
        least=4,
        most=100_000_000,
    )
    compaction_check_interval_seconds: Seconds = option(
        15.0,
        "How often to look for partitions of compacted topics that are dirty enough to be compacted.",
        why="Kafka: log.cleaner.backoff.ms, 15 s.",
        least=0.001,
    )
    log_cleaner_dedupe_buffer_bytes: Size = option(
        32 * MIB,
        "Memory for the keys of the records that one compaction looks at, 32 bytes each, while it runs.",
        why="Kafka: log.cleaner.dedupe.buffer.size, 128 MiB. What does not fit is done by the next compaction.",
        name="log-cleaner-dedupe-buffer-size",
        least=1 * MIB,
        most=4 * GIB,
    )
    retention_check_interval_seconds: Seconds = option(
        300.0,
        "How often to look for segments that retention.ms, retention.bytes or DeleteRecords let go.",
        why="Kafka: log.retention.check.interval.ms, 5 minutes.",
        least=0.001,
    )
    segment_delete_delay_ms: Milliseconds = option(
        300_000,
        "How long the objects of a segment stay in the bucket after it was dropped from the log, or its topic deleted.",
        why="Kafka: log.segment.delete.delay.ms, 1 minute. Fetches and Spark jobs that began before still finish.",
        least=0,
    )
    orphan_check_interval_seconds: Seconds = option(
        3600.0,
        "How often to list the bucket for objects that nothing refers to, such as a crash leaves behind.",
        why="Costs one listing request per thousand objects.",
        least=0.001,
    )
    orphan_grace_seconds: Seconds = option(
        3600.0,
        "How old such an object must be, and for how long it must have been seen as such, before it is deleted.",
        why="At least file.delete.delay.ms of its topic.",
        least=0,
    )
    producer_byte_rate: Size = option(
        0,
        "Bytes per second that the connections of one client id may produce, together; 0 for no limit.",
        why="Kafka: the client quota producer_byte_rate. Replies say throttle_time_ms, and reading pauses (KIP-219).",
        least=0,
    )
    consumer_byte_rate: Size = option(
        0,
        "Bytes per second that the connections of one client id may fetch, together; 0 for no limit.",
        why="Kafka: the client quota consumer_byte_rate.",
        least=0,
    )
    authorizer: AuthorizerKind = option(
        AuthorizerKind.NONE,
        "What decides what clients may do: none (everybody may do everything) or acl (access control lists).",
        why="Kafka: authorizer.class.name. Lists are added by `kafscale acls` or kafka-acls.sh.",
    )
    super_users: tuple[PrincipalText, ...] = option(
        (),
        "User who may do everything, whatever the lists say, as User:NAME; repeatable. A comma belongs to the name, "
        "unless TYPE: follows.",
        why="Kafka: super.users. Without one nobody can add the first list.",
        name="super-user",
    )
    allow_everyone_if_no_acl_found: bool = option(
        False,
        "Let everybody do everything with what no list is about.",
        why="Kafka: allow.everyone.if.no.acl.found, false.",
    )
    auto_create_topics: bool = option(
        True,
        "Create a topic when a client asks for it by name and allows that.",
        why="Kafka: auto.create.topics.enable, true.",
    )
    auto_create_topics_per_minute_count: int = option(
        600,
        "Topics that are created like that in a minute, a sixth of them at once; further ones when clients ask again.",
        why="A client that asks for thousands of names does not make them all. Kafka: KIP-599's quota, none.",
        least=1,
        most=1_000_000,
    )
    default_partitions_count: int = option(
        1,
        "Partitions of a topic that is created without a number.",
        why="Kafka: num.partitions, 1.",
        least=1,
        most=10_000,
    )
    offsets_topic_partitions_count: int = option(
        50,
        "Partitions of __consumer_offsets when it is created, which is when it is first needed.",
        why="Kafka: offsets.topic.num.partitions, 50. It can't be changed afterwards.",
        name="offsets-topic-num-partitions",
        least=1,
        most=10_000,
    )
    transaction_state_partitions_count: int = option(
        50,
        "Partitions of __transaction_state when it is created, which is when it is first needed.",
        why="Kafka: transaction.state.log.num.partitions, 50. It can't be changed afterwards.",
        name="transaction-state-log-num-partitions",
        least=1,
        most=10_000,
    )
    transaction_max_timeout_ms: Milliseconds = option(
        900_000,
        "Longest time that a producer may ask for as the timeout of its transactions.",
        why="Kafka: transaction.max.timeout.ms, 15 minutes. Readers of committed records wait for an open transaction.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    transactional_id_expiration_ms: Milliseconds = option(
        604_800_000,
        "A transactional id is forgotten this long after it was last used.",
        why="Kafka: transactional.id.expiration.ms, 7 days.",
        least=1,
    )
    transaction_cleanup_interval_ms: Milliseconds = option(
        10_000,
        "How often to look for transactions that have timed out; at least, as it looks when the next one is known to.",
        why="Kafka: transaction.abort.timed.out.transaction.cleanup.interval.ms, 10 s.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    broker_id: int = option(0, "Id of this broker, as clients see it.", why="Kafka: node.id.", least=0, most=2**31 - 1)
    several_brokers: bool = option(
        False,
        "Share the bucket with other brokers, each with an id of its own, of which each leads a part of the "
        "partitions. A bucket that is shared once stays so.",
    )
    inter_broker_listener: str | None = option(
        None,
        "Beside others: the listener by which brokers reach each other; all of them have one of this name. Default: "
        "the first that is secured as --inter-broker-config says, or is PLAINTEXT.",
        why="Kafka: inter.broker.listener.name.",
    )
    inter_broker_config: Path | None = option(
        None,
        "File of Kafka's client settings by which this broker connects to others: security.protocol, ssl.… and sasl.…, "
        "as clients have it. With access control lists, whoever logs in so needs ClusterAction on the cluster.",
        why="Read again when it, or a file that it names, has changed, as those of TLS are (--ssl-reload-interval). "
        "Kafka: security.inter.broker.protocol, sasl.mechanism.inter.broker.protocol.",
    )
    broker_session_timeout_seconds: Seconds = option(
        3.0,
        "Beside others: a broker that they hear nothing of for this long is taken for dead. What it leads is led by "
        "others then, where the bucket has all that it has acknowledged.",
        why="Kafka: broker.session.timeout.ms, 9 s. Here a heartbeat costs no write, and nothing is lost by a mistake.",
        least=0.5,
        most=300,
    )
    broker_store_timeout_seconds: Seconds = option(
        4.0,
        "Beside others, with s3-wal or segment: a broker that the store has not answered for this long, while it "
        "answers others, is taken for dead. What it leads is led by others then.",
        why="Clients mostly wait 30 s for an answer. Kafka gives a log directory that it can't write to up at once.",
        least=2,
        most=300,
    )
    balance_by: BalanceBy = option(
        BalanceBy.LOAD,
        "Beside others: partitions move until brokers have as much to do (load), by the bytes that are written and "
        "read and the number of partitions, or lead as many (number). That of the controller counts.",
        why="Kafka leaves that to Cruise Control, which weighs both as well.",
    )
    processes_count: int = option(
        1,
        "Brokers to run on this machine, each a process, with one more that watches over them. Budgets of memory, disk "
        "and connections are for all of them together.",
        why="Their ids are --broker-id and those that follow, and so are their ports. More than cores are of no use.",
        least=1,
        most=256,
    )
    cluster_id: str | None = option(
        None, "Id of the cluster, as clients see it. Default: made up once and kept in the metadata."
    )
    rack: str | None = option(
        None,
        "Rack or availability zone that this broker runs in, as clients see it. Default: none is told.",
        why="Kafka: broker.rack.",
    )
    allow_replication_factor: ReplicationFactorPolicy = option(
        ReplicationFactorPolicy.ACCEPT,
        "What to do with a replication factor above 1: accept (the store replicates) or refuse (error 38).",
    )
    shutdown_timeout_seconds: Seconds = option(
        8.0,
        "How long a shutdown may take before it is cut short; what is not in the bucket stays in the WAL.",
        why="Below the 10 s after which Docker kills.",
        least=0,
    )
    log_level: LogLevel = option(LogLevel.INFO, "Least severe messages to log: debug, info, warning or error.")
    log_format: LogFormat = option(LogFormat.TEXT, "How a log line on stderr looks: text or json.")
    ssl: SslSettings = attrs.field(factory=SslSettings)
    sasl: SaslSettings = attrs.field(factory=SaslSettings)
    coordinator: CoordinatorSettings = attrs.field(factory=CoordinatorSettings)
    limits: Limits = attrs.field(factory=Limits)

    def __attrs_post_init__(self) -> None:
        for each in _bounded_options():
            each.check(self.value(each), given_as=each.flag)
        check_listeners(self.listeners, self.advertised_listeners, self.listener_security_protocols)
        if self.inter_broker_listener not in (None, *(each.name for each in self.listeners)):
            raise ConfigError(
                f"--inter-broker-listener: '{self.inter_broker_listener}' is no listener; allowed: a name in --listen"
            )
        if self.admin_listen.wants_tls not in (None, self.admin_ssl):
            url = f"{self.admin_listen.scheme}://{self.admin_listen}"
            wanted = "with --admin-ssl" if self.admin_listen.wants_tls else "https:// with --admin-ssl"
            raise ConfigError(f"--admin-listen: '{url}' contradicts --admin-ssl; allowed: {wanted}, or HOST:PORT")
        check_ssl(self.ssl, [each for each in self.listeners if self.protocol_of(each).uses_tls], self.admin_ssl)
        _check_store(self)
        if not (self.limits.max_connections_per_ip_count or self.limits.max_connections_per_ip_overrides):
            raise ConfigError(
                "--max-connections-per-ip: '0' lets nobody in; allowed: with --max-connections-per-ip-overrides"
            )
        for user in self.super_users:
            if not all(user.partition(":")):
                raise ConfigError(f"--super-user: '{user}' is no principal; allowed: TYPE:NAME, as in User:alice")
        check_coordinator(self.coordinator, self.text)
        if self.limits.max_message_bytes > min(self.chunk_pool_bytes, self.limits.max_frame_bytes):
            raise ConfigError(
                f"--max-message-bytes: '{self.text('max_message_bytes')}' is too much; allowed: at most "
                f"--chunk-pool-bytes, {self.text('chunk_pool_bytes')}, "
                f"and --max-frame-bytes, {self.text('max_frame_bytes')}"
            )

    def value(self, wanted: Option) -> object:
        """The value of an option, whether it is a setting of its own or in a group of them."""
        holders: tuple[object, ...] = (self, *(getattr(self, name) for name in GROUPS))
        return next(getattr(each, wanted.attribute) for each in holders if hasattr(each, wanted.attribute))

    def text(self, attribute: str) -> str:
        """The value of an option as a user would write it."""
        wanted = next(each for each in options() if each.attribute == attribute)
        return wanted.format(self.value(wanted))

    @property
    def names_watched_files(self) -> bool:
        """Tell whether there are files that are read again when they have changed, or on SIGHUP."""
        return any((self.ssl.ssl_certificate_file, self.admin_token_file, self.inter_broker_config))

    def protocol_of(self, listener: Listener) -> SecurityProtocol:
        """Return how a listener is secured."""
        return protocol_of(listener.name, self.listener_security_protocols)


# The fields of Settings that hold options in an object of their own, which has a title in the reference.
GROUPS: Mapping[str, type[Any]] = {
    "ssl": SslSettings,
    "sasl": SaslSettings,
    "coordinator": CoordinatorSettings,
    "limits": Limits,
}


def option_classes() -> Sequence[type[Any]]:
    """`Settings`, then its groups; each has a `TITLE`."""
    return [Settings, *GROUPS.values()]


@cache
def options() -> tuple[Option, ...]:
    """All options, class by class."""
    return tuple(each for options_class in option_classes() for each in options_of(options_class))


@cache
def _bounded_options() -> tuple[Option, ...]:
    return tuple(each for each in options() if each.is_bounded)


def _check_store(settings: Settings) -> None:
    if not settings.namespace or "/" in settings.namespace or settings.namespace in (".", ".."):
        raise ConfigError(
            f"--namespace: '{settings.namespace}' is not a name; allowed: a part of a key, without a slash"
        )
    if settings.s3_sse is not None and settings.store.scheme != "s3":
        raise ConfigError(
            f"--s3-sse: '{settings.s3_sse}' has no use with --store {settings.store}; allowed: with --store s3://BUCKET"
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
            f"--s3-endpoint: '{settings.s3_endpoint}' has no use with --store {settings.store}; "
            f"allowed: with --store s3://BUCKET"
        )
