"""Limits at which the broker waits, refuses or closes, and the options of consumer groups.

Every queue, buffer and cache has its maximum here; those that a user may have to raise are options.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from kafscale.config.option import Milliseconds, Seconds, Size, option
from kafscale.config.units import KIB, MAX_TIMEOUT_MS, MIB
from kafscale.config.values import GroupAssignor, GroupMigrationPolicy, IpConnections
from kafscale.errors import ConfigError

ANY_NUMBER = 2**31 - 1  # Kafka's default for no limit


@attrs.frozen(kw_only=True)
class Limits:
    max_frame_bytes: Size = option(
        100 * MIB,
        "Largest request; a larger length prefix closes the connection before anything is allocated.",
        why="Kafka: socket.request.max.bytes, 100 MiB.",
        least=16 * KIB,
        most=2047 * MIB,
    )
    max_connections_count: int = option(
        10_000,
        "Most open connections over all listeners; further ones are closed at once.",
        why="Kafka: max.connections, no limit. A connection costs a file descriptor and about 20 KiB, with TLS up to "
        "180.",
        least=1,
    )
    max_connections_per_ip_count: int = option(
        ANY_NUMBER,
        "Most open connections from one IP address over all listeners; further ones are closed at once.",
        why="Kafka: max.connections.per.ip, the same, so unlimited. With 0, only the addresses of the next option "
        "may connect.",
        least=0,
        most=ANY_NUMBER,
    )
    max_connections_per_ip_overrides: tuple[IpConnections, ...] = option(
        (),
        "Another limit for one IP address, as IP:NUMBER; repeatable.",
        why="Kafka: max.connections.per.ip.overrides, which allows host names too.",
    )
    max_in_flight_requests_count: int = option(
        128,
        "Most unanswered requests of a connection; the broker then stops reading from it.",
        why="Kafka reads one at a time, like 1. Its producer sends at most 5, librdkafka up to 1,000,000.",
        least=1,
    )
    queued_max_request_bytes: Size = option(
        64 * MIB,
        "Most bytes of requests that are received in part or wait for their turn, beyond 64 KiB of each connection. "
        "Above it, large requests wait, and those that stop arriving are dropped.",
        why="Kafka: queued.max.request.bytes, no limit.",
        least=1 * MIB,
    )
    connection_idle_timeout_seconds: Seconds = option(
        600.0,
        "Close a connection that is idle, or doesn't read a reply, for this long.",
        why="Kafka: connections.max.idle.ms, 10 minutes.",
        least=1,
    )
    max_message_bytes: Size = option(
        1_048_588,
        "Default of the topic config max.message.bytes: largest record batch, as sent.",
        why="Kafka: message.max.bytes, the same.",
        least=1 * KIB,
        most=2047 * MIB,
    )
    max_group_members_count: int = option(
        10_000,
        "Most members of a classic consumer group; joining is then refused with GROUP_MAX_SIZE_REACHED.",
        why="Kafka: group.max.size, no limit.",
        least=1,
    )
    group_state_bytes: Size = option(
        256 * MIB,
        "Memory for members, assignments and committed offsets of all consumer groups. While it is full, new members "
        "and offsets get COORDINATOR_NOT_AVAILABLE, and clients retry.",
        why="An offset counts 256 bytes and its metadata, a member 1 KiB and its subscription. Kafka has no limit.",
        least=1 * MIB,
    )
    producer_id_expiration_ms: Milliseconds = option(
        86_400_000,
        "Forget the sequence numbers of an idempotent producer this long after its last batch.",
        why="Kafka: producer.id.expiration.ms, 24 hours.",
        least=1_000,
    )
    max_producer_ids_per_partition_count: int = option(
        10_000,
        "Most idempotent producers that a partition remembers; above it, the longest idle are forgotten.",
        why="Kafka has no limit. 100,000 are 14 MB of a footer.",
        least=1,
        most=100_000,
    )
    max_producer_state_bytes: Size = option(
        256 * MIB,
        "Memory for the sequence numbers of idempotent producers; above it, the longest idle are forgotten.",
        why="A producer takes 1 to 2 KiB for each partition. Kafka has no limit.",
        least=1 * MIB,
    )
    store_timeout_seconds: Seconds = option(
        30.0,
        "Abandon an attempt of an object store operation after this long without progress.",
        why="botocore: 60 seconds to connect and to read.",
        least=0.1,
    )

    # Limits that are not options: they stop abuse and are far from ordinary use. Kafka has none, unless it is named.
    max_ssl_handshakes_count: int = 256  # at once; further connections wait, and handshakes of 2 s or more give way
    ssl_handshake_timeout_seconds: float = 10.0
    max_in_flight_bytes: int = 64 * MIB  # unanswered requests of a connection; a larger request is taken alone
    frame_timeout_seconds: float = 30.0  # for a whole request, and 1 s more for each 8 KiB received
    max_decompressed_bytes: int = 128 * MIB  # of one batch, checked while it is decompressed
    max_decompressed_request_bytes: int = 1024 * MIB  # of the large batches of one Produce: 100 MiB unpack tenfold
    max_response_bytes: int = 64 * MIB  # except for Fetch: a million offsets are 25 MiB. librdkafka takes 95 MiB
    max_fetch_sessions_count: int = 1_000  # Kafka: max.incremental.fetch.session.cache.slots
    max_group_lag_series_count: int = 10_000  # of kafscale_group_lag, the largest: 1 MB for each scrape
    max_topics_count: int = 10_000
    max_partitions_count: int = 100_000  # Kafka advises 4,000 a broker; here a partition holds no open files
    max_groups_count: int = 100_000  # further ones can't be joined or committed to; see --group-state-bytes
    group_consumer_max_size_count: int = 10_000  # Kafka: group.consumer.max.size, no limit
    offset_metadata_max_bytes: int = 4 * KIB  # Kafka: offset.metadata.max.bytes
    max_producer_ids_count: int = attrs.Factory(  # over all partitions; 200,000 by default
        lambda limits: 200_000 * limits.max_producer_state_bytes // (256 * MIB), takes_self=True
    )
    max_transactional_ids_count: int = 100_000  # about 1 KiB each
    max_transaction_partitions_count: int = 10_000  # each added partition writes a record that names all
    footer_cache_bytes: int = 32 * MIB  # about 50 bytes for each 64 KiB of segments: 32 MiB index 40 GiB
    store_retry_deadline_seconds: float = 60.0  # then an operation fails; the flusher begins anew, nothing is lost
    store_upload_deadline_seconds: float = 300.0  # for a segment and its index: 64 MiB in 5 minutes are 0.2 MiB/s
    fetch_max_bytes: int = 55 * MIB  # of one Fetch, whatever the client asks for; Kafka: fetch.max.bytes of the broker


@attrs.frozen(kw_only=True)
class CoordinatorSettings:
    """Bounds and intervals of consumer groups; `group_consumer_*` are for those of Kafka 4 (KIP-848)."""

    group_initial_rebalance_delay_ms: Milliseconds = option(
        0,
        "How long a new classic consumer group waits for more members before its first rebalance.",
        why="Kafka: group.initial.rebalance.delay.ms, 3 s, and 0 in its quickstart. Raise it for large groups.",
        least=0,
        most=MAX_TIMEOUT_MS,
    )
    group_min_session_timeout_ms: Milliseconds = option(
        6_000,
        "Shortest session timeout that a member of a classic group may ask for.",
        why="Kafka: group.min.session.timeout.ms, 6 s.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    group_max_session_timeout_ms: Milliseconds = option(
        1_800_000,
        "Longest session timeout that a member of a classic group may ask for.",
        why="Kafka: group.max.session.timeout.ms, 30 minutes.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    group_consumer_heartbeat_interval_ms: Milliseconds = option(
        5_000,
        "Heartbeat interval of Kafka 4's consumer groups (KIP-848), through which members learn of a rebalance.",
        why="Kafka: group.consumer.heartbeat.interval.ms, 5 s.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    offsets_retention_ms: Milliseconds = option(
        604_800_000,
        "How long the committed offsets of a group without members are kept.",
        why="Kafka: offsets.retention.minutes, 7 days.",
        least=1,
    )

    # Bounds of what a group's own configs may set, as Kafka has them; a group's session timeout is one of these.
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_min_heartbeat_interval_ms: int = attrs.Factory(
        lambda settings: min(5_000, settings.group_consumer_heartbeat_interval_ms), takes_self=True
    )
    group_consumer_max_heartbeat_interval_ms: int = attrs.Factory(
        lambda settings: max(15_000, settings.group_consumer_heartbeat_interval_ms), takes_self=True
    )
    group_consumer_assignors: tuple[GroupAssignor, ...] = (GroupAssignor.UNIFORM, GroupAssignor.RANGE)
    group_consumer_migration_policy: GroupMigrationPolicy = GroupMigrationPolicy.BIDIRECTIONAL
    group_consumer_regex_refresh_interval_ms: int = 600_000


def check_coordinator(settings: CoordinatorSettings, text: Callable[[str], str]) -> None:
    """Raise ConfigError if two options contradict each other; `text` formats the value of an option."""
    if settings.group_min_session_timeout_ms > settings.group_max_session_timeout_ms:
        raise ConfigError(
            f"--group-min-session-timeout: '{text('group_min_session_timeout_ms')}' is too large; allowed: "
            f"at most --group-max-session-timeout, {text('group_max_session_timeout_ms')}"
        )
    if settings.group_consumer_heartbeat_interval_ms >= settings.group_consumer_session_timeout_ms:
        raise ConfigError(
            f"--group-consumer-heartbeat-interval: '{text('group_consumer_heartbeat_interval_ms')}' is too large; "
            f"allowed: less than the session timeout, {settings.group_consumer_session_timeout_ms // 1000}s"
        )
