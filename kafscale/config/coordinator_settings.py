"""The options of consumer groups: those that their coordinator takes from Kafka's broker, under its names."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import attrs

from kafscale.config.option import Milliseconds, option
from kafscale.config.units import MAX_TIMEOUT_MS
from kafscale.config.values import GroupAssignor, GroupMigrationPolicy
from kafscale.errors import ConfigError


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
