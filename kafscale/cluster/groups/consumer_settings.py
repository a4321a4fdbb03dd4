"""What an operator has set about consumer groups of Kafka 4's protocol."""

from __future__ import annotations

from kafscale.cluster.groups.consumer.settings import ConsumerGroupSettings, MigrationPolicy
from kafscale.config import Settings


def consumer_group_settings(settings: Settings) -> ConsumerGroupSettings:
    """Return what holds for all such groups of this broker."""
    return ConsumerGroupSettings(
        session_timeout_ms=settings.coordinator.group_consumer_session_timeout_ms,
        min_session_timeout_ms=settings.coordinator.group_consumer_min_session_timeout_ms,
        max_session_timeout_ms=settings.coordinator.group_consumer_max_session_timeout_ms,
        heartbeat_interval_ms=settings.coordinator.group_consumer_heartbeat_interval_ms,
        min_heartbeat_interval_ms=settings.coordinator.group_consumer_min_heartbeat_interval_ms,
        max_heartbeat_interval_ms=settings.coordinator.group_consumer_max_heartbeat_interval_ms,
        max_size=settings.limits.group_consumer_max_size_count,
        assignors=tuple(map(str, settings.coordinator.group_consumer_assignors)),
        migration_policy=MigrationPolicy(settings.coordinator.group_consumer_migration_policy.value),
        regex_refresh_interval_ms=settings.coordinator.group_consumer_regex_refresh_interval_ms,
        classic_max_size=settings.limits.max_group_members_count,
    )
