"""The named maxima: what the broker takes on before it waits, refuses or closes.

Each is an option, so that somebody who hits one can raise it without a new release; few ever need to. Where Kafka, or a
broker with its log in object storage, has the same limit, its name and default are beside ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import attrs

from kafscale.config.option import Milliseconds, Seconds, Size, option
from kafscale.config.units import KIB, MAX_TIMEOUT_MS, MIB
from kafscale.config.values import GroupAssignor, GroupMigrationPolicy, IpConnections
from kafscale.errors import ConfigError

ANY_NUMBER = 2**31 - 1  # Kafka's default of what it does not limit


@attrs.frozen(kw_only=True)
class Limits:
    """Maxima of one broker; sizes are in bytes."""

    TITLE: ClassVar[str] = "Limits"  # in the reference

    max_frame_bytes: Size = option(
        100 * MIB,
        "Largest request that is read; a larger length prefix ends the connection before anything is allocated.",
        why="Kafka: socket.request.max.bytes, 100 MiB.",
        least=16 * KIB,
        most=2047 * MIB,
    )
    max_connections_count: int = option(
        10_000,
        "Connections open at once, over all listeners; past it new ones are closed at once.",
        why="Kafka: max.connections, no limit. Each costs a file descriptor and about 20 KiB, over TLS up to 180.",
        least=1,
    )
    max_connections_per_ip_count: int = option(
        ANY_NUMBER,
        "Connections open at once from one IP address, over all listeners; past it new ones are closed at once.",
        why="Kafka: max.connections.per.ip, the same, which is no limit. 0 lets nobody in but by the next option.",
        least=0,
        most=ANY_NUMBER,
    )
    max_connections_per_ip_overrides: tuple[IpConnections, ...] = option(
        (),
        "An IP address that may have another number of them, as IP:NUMBER; repeatable.",
        why="Kafka: max.connections.per.ip.overrides, where host names are allowed too.",
    )
    max_ssl_handshakes_count: int = option(
        256,
        "Handshakes of TLS under way at once, over all listeners; past it new connections wait for one to end, and one "
        "that has taken two seconds or more gives way.",
        why="Kafka has no limit.",
        least=1,
    )
    ssl_handshake_timeout_seconds: Seconds = option(
        10.0,
        "A handshake of TLS must be done this long after its connection was accepted; else that is closed.",
        why="Kafka has no such limit but connections.max.idle.ms.",
        least=0.1,
    )
    max_in_flight_requests_count: int = option(
        128,
        "Requests of one connection that are read and not answered yet; past it the broker stops reading from it.",
        why="Kafka reads one at a time (1 gives that); its producer sends at most 5, librdkafka up to 1,000,000.",
        least=1,
    )
    max_in_flight_bytes: Size = option(
        64 * MIB,
        "Bytes of those requests; past it the broker stops reading. One request larger than this is still taken alone.",
        why="Kafka reads one request at a time.",
        least=16 * KIB,
    )
    queued_max_request_bytes: Size = option(
        64 * MIB,
        "Bytes of requests that have come in part, or wait for their turn, beyond 64 KiB of each connection; past it "
        "large requests wait, and are given up if they do not come on. Produces that come into the chunk pool may have "
        "half of that instead.",
        why="Kafka: queued.max.request.bytes, no limit.",
        least=1 * MIB,
    )
    frame_timeout_seconds: Seconds = option(
        30.0,
        "A request must be whole this long after its first byte, and a second later for each 8 KiB of it that are "
        "here; else its connection is closed.",
        why="Kafka has no such limit; a half request would hold its connection for good.",
        least=1,
    )
    connection_idle_timeout_seconds: Seconds = option(
        600.0,
        "A connection that sends nothing and waits for nothing, or does not take a reply, for this long is closed.",
        why="Kafka: connections.max.idle.ms, 10 minutes.",
        least=1,
    )
    max_decompressed_bytes: Size = option(
        128 * MIB,
        "Largest size that a compressed batch may unpack to, checked while it is unpacked.",
        why="Kafka has no limit and unpacks records one by one.",
        least=1 * MIB,
    )
    max_decompressed_request_bytes: Size = option(
        1024 * MIB,
        "Largest size that the large compressed batches of one Produce may unpack to together.",
        why="Kafka has no limit. A request of --max-frame-bytes that is compressed to a tenth unpacks to 1 GiB.",
        least=1 * MIB,
    )
    max_message_bytes: Size = option(
        1_048_588,
        "Default of the topic setting max.message.bytes: largest record batch, as sent.",
        why="Kafka: message.max.bytes, the same.",
        least=1 * KIB,
        most=2047 * MIB,
    )
    fetch_max_bytes: Size = option(
        55 * MIB,
        "Most that one fetch returns, whatever the client asks for (the first batch is returned even if larger).",
        why="Kafka: fetch.max.bytes of the broker, 55 MiB.",
        least=1 * KIB,
        most=2047 * MIB,
    )
    max_response_bytes: Size = option(
        64 * MIB,
        "Largest answer but those of fetches; a request that would get a larger one ends its connection instead.",
        why="100,000 partitions are 4 MiB of Metadata, a million offsets 25 MiB. librdkafka takes 95 MiB.",
        least=1 * MIB,
        most=2047 * MIB,
    )
    max_fetch_sessions_count: int = option(
        1_000,
        "Incremental fetch sessions kept; past it fetches work without one.",
        why="Kafka: max.incremental.fetch.session.cache.slots, 1000.",
        least=0,
    )
    max_group_lag_series_count: int = option(
        10_000,
        "Series of kafscale_group_lag in /metrics, the largest lags; kafscale_group_lag_left_out_series counts others.",
        why="A committed offset is a series; 10,000 are 1 MB a scrape. Kafka's brokers tell no lag.",
        least=0,
        most=100_000,
    )
    max_topics_count: int = option(
        10_000,
        "Topics; past it creating one is refused with POLICY_VIOLATION.",
        why="Kafka has no limit.",
        least=1,
    )
    max_partitions_count: int = option(
        100_000,
        "Partitions of all topics together; past it creating more is refused with POLICY_VIOLATION.",
        why="Kafka has no limit and advises 4,000 a broker, since each holds open files; here one costs memory only.",
        least=1,
    )
    max_groups_count: int = option(
        100_000,
        "Consumer groups; past it joining or committing to a new one is refused.",
        why="Kafka has no limit.",
        least=1,
    )
    max_group_members_count: int = option(
        10_000,
        "Members of one consumer group; past it joining is refused with GROUP_MAX_SIZE_REACHED.",
        why="Kafka: group.max.size, no limit.",
        least=1,
    )
    group_consumer_max_size_count: int = option(
        10_000,
        "Members of one of Kafka 4's consumer groups; past it joining is refused with GROUP_MAX_SIZE_REACHED.",
        why="Kafka: group.consumer.max.size, no limit.",
        least=1,
    )
    group_state_bytes: Size = option(
        256 * MIB,
        "Memory for the state of all consumer groups: members, assignments and committed offsets; past it joining and "
        "committing what is not known yet fails with COORDINATOR_NOT_AVAILABLE, and clients try again.",
        why="An offset is counted with 256 bytes and its metadata, a member with 1 KiB and what it says of itself. "
        "Kafka has no limit.",
        least=1 * MIB,
    )
    offset_metadata_max_bytes: Size = option(
        4 * KIB,
        "Largest metadata string of a committed offset.",
        why="Kafka: offset.metadata.max.bytes, 4096.",
        least=0,
    )
    producer_id_expiration_ms: Milliseconds = option(
        86_400_000,
        "An idempotent producer's last sequences are forgotten this long after its last batch.",
        why="Kafka: producer.id.expiration.ms, 24 hours.",
        least=1_000,
    )
    max_producer_ids_per_partition_count: int = option(
        10_000,
        "Idempotent producers that a partition remembers; past it those go first that have been idle for longest.",
        why="Kafka has no limit; KIP-936, which proposes one by rate, was not adopted. 100,000 are 14 MB of a footer.",
        least=1,
        most=100_000,
    )
    max_producer_ids_count: int = option(
        200_000,
        "Idempotent producers that all partitions together remember, counted in each; past it as for one partition.",
        why="Kafka has no limit.",
        least=1,
    )
    max_producer_state_bytes: Size = option(
        256 * MIB,
        "Memory for what is remembered of them; past it as for their number. Each takes 1 to 2 KiB.",
        why="Kafka has no limit.",
        least=1 * MIB,
    )
    max_transactional_ids_count: int = option(
        100_000,
        "Transactional ids; past it InitProducerId of a new one is refused with POLICY_VIOLATION.",
        why="Kafka has no limit. Each takes about 1 KiB, and 200 bytes for each partition of its transaction.",
        least=1,
    )
    max_transaction_partitions_count: int = option(
        10_000,
        "Partitions that one transaction may write to; past it adding one fails, and the transaction is to be aborted.",
        why="Kafka has no limit. Each time one is added a record that names all of them is written.",
        least=1,
        most=100_000,
    )
    footer_cache_bytes: Size = option(
        32 * MIB,
        "Segment footers (the index of their batches) that are kept in memory.",
        why="A footer is about 50 bytes for each 64 KiB of its segment, so 32 MiB index some 40 GiB.",
        least=64 * KIB,
    )
    store_timeout_seconds: Seconds = option(
        30.0,
        "One attempt of an object store operation is given up after this long without progress.",
        why="botocore: 60 seconds to connect and to read.",
        least=0.1,
    )
    store_retry_deadline_seconds: Seconds = option(
        60.0,
        "A failed operation is tried again, with growing and jittered pauses, until this much time has passed.",
        why="botocore counts instead: 3 attempts by default.",
        least=0,
    )
    store_upload_deadline_seconds: Seconds = option(
        300.0,
        "The upload of a segment and its index is given up, and begun again later, after this long, retries included.",
        why="64 MiB in 5 minutes are 0.2 MiB/s. Raise it with --segment-bytes where the line to the store is thin.",
        least=1,
    )


@attrs.frozen(kw_only=True)
class CoordinatorSettings:
    """What members of consumer groups may ask for, and what they get; `group_consumer_*` of Kafka 4's (KIP-848)."""

    TITLE: ClassVar[str] = "Consumer groups"  # in the reference

    group_initial_rebalance_delay_ms: Milliseconds = option(
        0,
        "How long a new consumer group waits for more members before its first rebalance.",
        why="Kafka: group.initial.rebalance.delay.ms, 3 s, and 0 in its quickstart. Raise it for large groups.",
        least=0,
        most=MAX_TIMEOUT_MS,
    )
    group_min_session_timeout_ms: Milliseconds = option(
        6_000,
        "Shortest session timeout that a consumer group's member may ask for.",
        why="Kafka: group.min.session.timeout.ms, 6 s.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    group_max_session_timeout_ms: Milliseconds = option(
        1_800_000,
        "Longest session timeout that a consumer group's member may ask for.",
        why="Kafka: group.max.session.timeout.ms, 30 minutes.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    group_consumer_session_timeout_ms: Milliseconds = option(
        45_000,
        "Session timeout of members of Kafka 4's consumer groups, which the broker sets.",
        why="Kafka: group.consumer.session.timeout.ms, 45 s.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    group_consumer_min_session_timeout_ms: Milliseconds = option(
        45_000,
        "Shortest session timeout that may be set for Kafka 4's consumer groups.",
        why="Kafka: group.consumer.min.session.timeout.ms, 45 s.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    group_consumer_max_session_timeout_ms: Milliseconds = option(
        60_000,
        "Longest session timeout that may be set for Kafka 4's consumer groups.",
        why="Kafka: group.consumer.max.session.timeout.ms, 60 s.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    group_consumer_heartbeat_interval_ms: Milliseconds = option(
        5_000,
        "How often members of Kafka 4's consumer groups are to send heartbeats, by which they learn of a rebalance.",
        why="Kafka: group.consumer.heartbeat.interval.ms, 5 s.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    group_consumer_min_heartbeat_interval_ms: Milliseconds = option(
        5_000,
        "Shortest heartbeat interval that may be set for Kafka 4's consumer groups.",
        why="Kafka: group.consumer.min.heartbeat.interval.ms, 5 s.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    group_consumer_max_heartbeat_interval_ms: Milliseconds = option(
        15_000,
        "Longest heartbeat interval that may be set for Kafka 4's consumer groups.",
        why="Kafka: group.consumer.max.heartbeat.interval.ms, 15 s.",
        least=1,
        most=MAX_TIMEOUT_MS,
    )
    group_consumer_assignors: tuple[GroupAssignor, ...] = option(
        (GroupAssignor.UNIFORM, GroupAssignor.RANGE),
        "Assignors that members of Kafka 4's consumer groups may ask for; repeatable. The first is the default.",
        why="Kafka: group.consumer.assignors, the same.",
    )
    group_consumer_migration_policy: GroupMigrationPolicy = option(
        GroupMigrationPolicy.BIDIRECTIONAL,
        "Whether groups with members may change from the classic protocol to Kafka 4's (upgrade) and back (downgrade).",
        why="Kafka: group.consumer.migration.policy, bidirectional.",
    )
    group_consumer_regex_refresh_interval_ms: Milliseconds = option(
        600_000,
        "How old what regular expressions of Kafka 4's consumer groups have found may be, if no topic is created.",
        why="Kafka: group.consumer.regex.refresh.interval.ms, 10 minutes.",
        least=10_000,
        most=MAX_TIMEOUT_MS,
    )
    offsets_retention_ms: Milliseconds = option(
        604_800_000,
        "Committed offsets of a group without members are forgotten after this long.",
        why="Kafka: offsets.retention.minutes, 7 days.",
        least=1,
    )


def check_coordinator(settings: CoordinatorSettings, text: Callable[[str], str]) -> None:
    """Raise ConfigError if two of the options contradict each other; `text` writes one as a user would."""
    if settings.group_min_session_timeout_ms > settings.group_max_session_timeout_ms:
        raise ConfigError(
            f"--group-min-session-timeout: '{text('group_min_session_timeout_ms')}' is too much; allowed: "
            f"at most --group-max-session-timeout, which is {text('group_max_session_timeout_ms')}"
        )
    for kind in ("session_timeout", "heartbeat_interval"):
        name = kind.replace("_", "-")
        wanted, least, most = (f"group_consumer_{each}{kind}_ms" for each in ("", "min_", "max_"))
        if not getattr(settings, least) <= getattr(settings, wanted) <= getattr(settings, most):
            raise ConfigError(
                f"--group-consumer-{name}: '{text(wanted)}' is out of range; allowed: "
                f"from --group-consumer-min-{name}, which is {text(least)}, "
                f"to --group-consumer-max-{name}, which is {text(most)}"
            )
    if settings.group_consumer_heartbeat_interval_ms >= settings.group_consumer_session_timeout_ms:
        raise ConfigError(
            f"--group-consumer-heartbeat-interval: '{text('group_consumer_heartbeat_interval_ms')}' is too "
            "much; allowed: less than --group-consumer-session-timeout, which is "
            f"{text('group_consumer_session_timeout_ms')}"
        )
