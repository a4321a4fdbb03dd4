"""Configs of single consumer groups of Kafka 4's protocol: their session timeouts and heartbeat intervals.

Members learn them with their next heartbeat. Configs may be set on a group that does not exist yet, and stay when a
group is deleted. Keys of the store: `group-configs/<group id>`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Final

import attrs

from kafscale.cluster.groups.common.context import NO_OVERRIDES, GroupOverrides, group_times
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.registries.base import EntryRegistry
from kafscale.cluster.registries.config_definitions import ConfigDefinition, ConfigSource, ConfigType
from kafscale.cluster.registries.config_entries import ConfigEntry, ConfigSynonym, broker_synonyms
from kafscale.cluster.registries.topics import NewConfigs
from kafscale.concurrency.turns import in_turns
from kafscale.config import CoordinatorSettings
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_CONFIG, POLICY_VIOLATION

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
GROUPS_MAX_COUNT = 10_000  # that have configs of their own; Kafka has no limit

_PREFIX = "group-configs/"

logger = logging.getLogger(__name__)

_config = partial(ConfigDefinition, type=ConfigType.INT, least=1, acts=True)
GROUP_CONFIGS: Mapping[str, ConfigDefinition] = {
    HEARTBEAT_INTERVAL: _config(
        name=HEARTBEAT_INTERVAL,
        default="5000",
        broker_name="group.consumer.heartbeat.interval.ms",
        documentation="How often a member of the group sends a heartbeat.",
    ),
    SESSION_TIMEOUT: _config(
        name=SESSION_TIMEOUT,
        default="45000",
        broker_name="group.consumer.session.timeout.ms",
        documentation="How long the group waits for a member that sends no heartbeat.",
    ),
}


@attrs.define(eq=False, repr=False)
class _NewConfigs:
    """New configs of groups; an empty mapping removes those of a group."""

    before: Mapping[str, Mapping[str, str]]
    changed: dict[str, Mapping[str, str]] = attrs.field(factory=dict, init=False)
    _added_count: int = attrs.field(default=0, init=False)  # groups that had none before

    def put(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Set a group's new configs. Raises KafkaError POLICY_VIOLATION if too many groups would have some."""
        if group_id not in self.before and group_id not in self.changed:
            if not configs:
                return
            if len(self.before) + self._added_count >= GROUPS_MAX_COUNT:
                raise KafkaError(
                    POLICY_VIOLATION,
                    f"No more than {GROUPS_MAX_COUNT:,} groups can have configs: remove those of others.",
                )
            self._added_count += 1
        self.changed[group_id] = configs


@attrs.define(eq=False, repr=False)
class GroupConfigs(EntryRegistry):
    """All configs of groups. `overrides` has those in force, by group id: one live mapping."""

    PREFIXES: ClassVar = (_PREFIX,)

    settings: CoordinatorSettings = attrs.field(factory=CoordinatorSettings)
    overrides: Mapping[str, GroupOverrides] = attrs.field(init=False)
    _in_force: dict[str, GroupOverrides] = attrs.field(factory=dict, init=False)
    _by_group: dict[str, Mapping[str, str]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.overrides = MappingProxyType(self._in_force)
        super().__attrs_post_init__()

    def _put(self, key: str, value: bytes) -> None:
        if (configs := self._follower.read(key, value, partial(decode, dict[str, str]))) is not None:
            group_id = key.removeprefix(_PREFIX)
            self._in_force[group_id] = self._allowed(group_id, configs)
            self._by_group[group_id] = configs
            with suppress(KafkaError):  # older data has the text that a client typed
                self._by_group[group_id] = _canonical(configs)

    def _delete(self, key: str) -> None:
        group_id = key.removeprefix(_PREFIX)
        self._by_group.pop(group_id, None)
        self._in_force.pop(group_id, None)

    def _allowed(self, group_id: str, configs: Mapping[str, str]) -> GroupOverrides:
        """Return the configs in force: those that this version knows, if its settings still allow them."""
        if unknown := configs.keys() - GROUP_CONFIGS:
            logger.warning("group %r has configs that only a later version knows: %s", group_id, sorted(unknown))
        try:
            wanted = _parse({name: text for name, text in configs.items() if name in GROUP_CONFIGS})
            group_times(self.settings, wanted)
        except (ValueError, KafkaError) as exc:
            logger.warning("group %r uses the broker's times: its own are not allowed now: %s", group_id, exc)
            return NO_OVERRIDES
        return wanted

    def group_ids(self) -> Sequence[str]:
        """Return the groups that have configs of their own, in order."""
        return sorted(self._by_group)

    def entries(self, group_id: str) -> Sequence[ConfigEntry]:
        """Return every config of a group, which need not exist, in order of name."""
        configs = self._by_group.get(group_id, {})
        defaults = {
            HEARTBEAT_INTERVAL: self.settings.group_consumer_heartbeat_interval_ms,
            SESSION_TIMEOUT: self.settings.group_consumer_session_timeout_ms,
        }
        return [
            _entry(config, own=configs.get(name), default=str(defaults[name])) for name, config in GROUP_CONFIGS.items()
        ]

    async def alter(self, changes: Sequence[NewConfigs], *, validate_only: bool = False) -> list[KafkaError | None]:
        """Set configs of groups in one transaction; return refusals or None. Raises as the store."""
        outcomes: list[KafkaError | None] = []

        async def plan(revision: int) -> Transaction | None:
            outcomes.clear()
            draft = _NewConfigs(self._by_group)
            async for change in in_turns(changes):
                outcomes.append(self._plan(change, draft))
            if validate_only or not draft.changed:
                return None
            puts = {_key(name): encode(dict(new)) async for name, new in in_turns(draft.changed.items()) if new}
            return Transaction(
                puts=puts,
                deletes=[_key(group_id) for group_id, configs in draft.changed.items() if not configs],
                planned_from=self._planned_from(revision),
            )

        try:
            await self._commit(plan)
        except KafkaError as exc:
            return [exc if outcome is None else outcome for outcome in outcomes]
        return outcomes

    def _plan(self, change: NewConfigs, draft: _NewConfigs) -> KafkaError | None:
        """Add a group's new configs to the draft; return why they are refused, or None."""
        try:
            configs = _canonical(change.overrides(self._by_group.get(change.name, {})))
            try:
                group_times(self.settings, _parse(configs))
            except ValueError as exc:
                raise KafkaError(INVALID_CONFIG, str(exc)) from exc
            draft.put(change.name, configs)
        except KafkaError as exc:
            return exc.kept()
        return None


def _parse(configs: Mapping[str, str]) -> GroupOverrides:
    """Return configs as values. Raises KafkaError INVALID_CONFIG."""
    values: dict[str, int] = {}
    for name, text in configs.items():
        definition = GROUP_CONFIGS.get(name)
        if definition is None:
            raise KafkaError(INVALID_CONFIG, f"Unknown group config name: {name}")
        values[name] = int(str(definition.parse(text)))
    return GroupOverrides(
        session_timeout_ms=values.get(SESSION_TIMEOUT), heartbeat_interval_ms=values.get(HEARTBEAT_INTERVAL)
    )


def _canonical(configs: Mapping[str, str]) -> Mapping[str, str]:
    """Return configs with each value as Kafka answers it. Raises KafkaError INVALID_CONFIG."""
    return {
        name: GROUP_CONFIGS[name].canonical(text) if name in GROUP_CONFIGS else text for name, text in configs.items()
    }


def _entry(definition: ConfigDefinition, *, own: str | None, default: str) -> ConfigEntry:
    assert definition.broker_name is not None
    synonyms = broker_synonyms(definition.broker_name, default, definition.default)
    if own is not None:
        synonyms.insert(0, ConfigSynonym(definition.name, own, ConfigSource.GROUP_CONFIG))
    return ConfigEntry.of(definition, synonyms)


def _key(group_id: str) -> str:
    return _PREFIX + group_id
