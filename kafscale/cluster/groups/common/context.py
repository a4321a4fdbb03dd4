"""The settings and services that all groups of a coordinator share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from uuid import uuid4

import attrs

from kafscale.cluster.groups.common.events import Downgrade, RegexRefresh
from kafscale.cluster.groups.common.log_records import CoordinatorRecord
from kafscale.cluster.groups.common.settings import GroupOverrides, GroupStateBytes
from kafscale.cluster.groups.common.topics import KnownTopics
from kafscale.concurrency.timers import TimerQueue
from kafscale.config import Settings

Then = Callable[[bool], None]  # told whether the records are durable


def ignore_outcome(durable: bool) -> None:
    """Do nothing: the log reports a failed write itself."""


def ignore_late() -> None:
    """Do nothing: no client waits for the records."""


class Rights(Protocol):
    """The authorizer, for topics that regular expressions find."""

    @property
    def version(self) -> int:
        """The number of changes of rights since the start."""

    def may_describe(self, viewer: Any, topic: str) -> bool:
        """Tell whether a client may know of a topic."""


class Submit(Protocol):
    """Writes records of a group, however long that takes.

    Calls `late` if it takes long. Calls `placed` with the offsets of the records in the log once they are durable, and
    then `then`.
    """

    def __call__(
        self,
        group_id: str,
        records: Sequence[CoordinatorRecord],
        then: Then,
        *,
        late: Callable[[], None] = ...,
        placed: Callable[[Sequence[int]], None] = ...,
    ) -> None: ...


@attrs.frozen(eq=False, kw_only=True, repr=False)
class GroupContext:
    """`overrides` has settings of single groups by id; `rights` is None without an authorizer.

    `search` starts a search for topics, whose result the group's `regexes_found` gets. `downgrade` puts a classic
    group into the place of the consumer group of an id.
    """

    settings: Settings
    overrides: Mapping[str, GroupOverrides]
    topics: KnownTopics
    state_bytes: GroupStateBytes
    timers: TimerQueue
    wall_clock_ms: Callable[[], int]
    submit: Submit
    search: Callable[[Any, RegexRefresh], None]
    downgrade: Callable[[str, Downgrade], None]
    rights: Rights | None = None
    new_member_id: Callable[[], str] = lambda: str(uuid4())
