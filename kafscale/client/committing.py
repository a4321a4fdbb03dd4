"""A reader that keeps its place in a consumer group: starts from the group's committed offsets, and commits its own.

As a simple consumer, which is not a member: it reads all partitions that it is given, and a group whose members have
them refuses its commits. What it commits it has been told was used, so after a failure records come again, none are
lost.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio

from kafscale.client.client import Client
from kafscale.client.groups import TopicPartition, commit_offsets, committed_offsets, describe_group
from kafscale.errors import KafkaError
from kafscale.login.failures import failure
from kafscale.wire.error_codes import GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP

COMMIT_INTERVAL_SECONDS = 5.0  # Kafka's consumer: auto.commit.interval.ms


@attrs.define(eq=False, kw_only=True, repr=False)
class GroupReader:
    """The place of a group in one topic. `used` is called as records are used up, `commit` at the end."""

    client: Client
    group: str
    topic: str
    _committed: dict[int, int] = attrs.field(factory=dict, init=False)
    _used: dict[int, int] = attrs.field(factory=dict, init=False)
    _commit_at: float = attrs.field(default=0.0, init=False)

    async def positions(
        self, otherwise: Mapping[int, int], *, least: Mapping[int, int], most: Mapping[int, int]
    ) -> dict[int, int]:
        """Return where to begin in each partition: as committed if the log has that offset, else as `otherwise` says.

        `least` and `most` are the ends of the log.

        Raises KafkaError (NON_EMPTY_GROUP if the group has members), BrokerUnavailable.
        """
        await self._check_no_members()
        committed = await committed_offsets(self.client, self.group)
        found = {each.partition: offset for each, offset in committed.items() if each.topic == self.topic}
        self._committed = {each: found[each] for each in otherwise if each in found}
        self._used = {
            each: self._committed[each] if least[each] <= self._committed.get(each, -1) <= most[each] else fallback
            for each, fallback in otherwise.items()
        }
        self._commit_at = trio.current_time() + COMMIT_INTERVAL_SECONDS
        return dict(self._used)

    async def _check_no_members(self) -> None:
        try:
            described = await describe_group(self.client, self.group)
        except KafkaError as exc:
            if exc.code != GROUP_ID_NOT_FOUND:
                raise
            return
        if described.members:
            raise failure(NON_EMPTY_GROUP, f"group '{self.group}'", f"members: {len(described.members)}")

    async def used(self, positions: Mapping[int, int]) -> None:
        """Everything below these offsets has been used; commits now and then. Raises as `commit`."""
        self._used.update(positions)
        if trio.current_time() >= self._commit_at:
            await self.commit()

    async def commit(self) -> None:
        """Commit what has not been. Raises KafkaError (UNKNOWN_MEMBER_ID if the group has members now)."""
        self._commit_at = trio.current_time() + COMMIT_INTERVAL_SECONDS
        news = {each: offset for each, offset in self._used.items() if self._committed.get(each) != offset}
        if news:
            offsets = {TopicPartition(self.topic, each): offset for each, offset in news.items()}
            await commit_offsets(self.client, self.group, offsets)
            self._committed.update(news)
