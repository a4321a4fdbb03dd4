"""Configs of brokers that were set at run time: durable before they act, kept over restarts.

Each broker has its own, and there are those of all brokers, which hold where a broker has none of its own. Reads are
synchronous, from memory, which follows the metadata. Keys of the store: `broker-configs/<broker id>`, and
`broker-configs/default`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import attrs
import trio

from kafscale.cluster.configs.definitions import CLUSTER_DEFAULTS, NOTHING_SET, DynamicConfigs
from kafscale.cluster.configs.dynamic import checked_dynamic, readable_dynamic, settings_with
from kafscale.cluster.metadata.base import Change, MetadataStore, PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.metadata.follower import Follower
from kafscale.config import Settings

ALL_BROKERS: Final = None
_PREFIX = "broker-configs/"
_DEFAULT_KEY = f"{_PREFIX}default"

Configs = Mapping[str, str]


@attrs.define(eq=False, repr=False)
class BrokerConfigs:
    """All of them. Who follows them is called when those of this broker may have changed.

    `options` are the settings that the broker was started with, `settings` those in force.
    """

    store: MetadataStore
    options: Settings
    dynamic: DynamicConfigs = attrs.field(default=NOTHING_SET, init=False)  # of this broker
    settings: Settings = attrs.field(init=False)
    _by_key: dict[str, Configs] = attrs.field(factory=dict, init=False)
    _altering: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _listeners: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    _follower: Follower = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.settings = self.options
        self._follower = Follower(self.store, (_PREFIX,), self._apply, lambda: self._by_key)

    def follow(self, listener: Callable[[], None]) -> None:
        """Call the listener, which must not raise, now and after each change."""
        self._listeners.append(listener)
        listener()

    async def load(self) -> None:
        """Take in what was set before this broker started."""
        await self._follower.load()

    async def run(self) -> None:
        """Catch up with the metadata store by listing it, where it is too far ahead, until cancelled."""
        await self._follower.run()

    def _apply(self, change: Change) -> None:
        for key in filter(_is_ours, change.deletes):
            self._by_key.pop(key, None)
        for key in filter(_is_ours, change.puts):
            if (configs := self._follower.read(key, change.puts[key], partial(decode, dict[str, str]))) is not None:
                self._by_key[key] = configs
        own = readable_dynamic(self._by_key.get(_key(self.options.broker_id), {}))
        default = readable_dynamic(self._by_key.get(_DEFAULT_KEY, {}))
        dynamic = DynamicConfigs(own=own, default={**CLUSTER_DEFAULTS, **default})
        if dynamic != self.dynamic:
            self.dynamic, self.settings = dynamic, settings_with(self.options, dynamic.in_force())
            for listener in self._listeners:
                listener()

    async def alter(
        self, broker_id: int | None, overrides: Callable[[Configs], Configs], *, validate_only: bool = False
    ) -> None:
        """Set other configs on a broker, or on ALL_BROKERS. Raises KafkaError, and what the store raises."""
        key = _DEFAULT_KEY if broker_id is ALL_BROKERS else _key(broker_id)

        async def plan(revision: int) -> Transaction | None:
            old = self._by_key.get(key, {})
            is_one = broker_id is not ALL_BROKERS
            new = checked_dynamic(self.options, overrides(old), old, of_one_broker=is_one)
            if validate_only or new == old:
                return None
            return Transaction(
                puts={key: encode(new)} if new else {},
                deletes=[] if new else [key],
                planned_from=PlannedFrom(revision=revision, keys=(key,)),
            )

        async with self._altering:
            await self._follower.commit_planned(plan)


def _key(broker_id: int) -> str:
    return f"{_PREFIX}{broker_id}"


def _is_ours(key: str) -> bool:
    return key.startswith(_PREFIX)
