"""A group id has a group of one protocol, and gets one of the other: with members by migration, without at once.

What is written for that is one submission, so that a crash leaves the one or the other; and whoever waits in a classic
group that is none any more is told to join again.
"""

from __future__ import annotations

import logging

from kafscale.cluster.groups.classic.group import Group, GroupContext
from kafscale.cluster.groups.consumer.events import Downgrade, Heartbeat, HeartbeatReply
from kafscale.cluster.groups.entry import GroupEntry
from kafscale.cluster.groups.hosted import HostContext, HostedGroup
from kafscale.cluster.groups.log_records import group_record
from kafscale.concurrency.signals import OneShot
from kafscale.wire import error_codes

logger = logging.getLogger(__name__)


def first_heartbeat(
    group_id: str, former: Group | None, request: Heartbeat, context: HostContext
) -> tuple[HostedGroup | None, OneShot[HeartbeatReply]]:
    """Make a consumer group, of a classic one if there is such; None if the heartbeat is refused, and the answer."""
    if former is not None and len(former.members):
        begun, reply = HostedGroup.upgraded(former.record(), group_id, request, context)
    else:
        tombstone = group_record(group_id, None, timestamp_ms=context.wall_clock_ms())
        before = [] if former is None else [tombstone]
        begun, reply = HostedGroup.begun(group_id, request, context, before=before)
    if former is not None and begun is not None:
        logger.info("group %r is a consumer group now", group_id)
        former.resign(error_codes.REBALANCE_IN_PROGRESS)
    return begun, reply


def begin_classic(entry: GroupEntry, context: GroupContext) -> Group:
    """Put a new classic group into the place of a consumer group without members."""
    former = entry.hosted
    assert former is not None
    former.delete()
    entry.group = group = Group(group_id=former.group_id, context=context)
    return group


def end_downgrade(entry: GroupEntry, downgrade: Downgrade, context: GroupContext) -> None:
    """A consumer group is a classic one from now on, as the log has been told."""
    former = entry.hosted
    assert former is not None
    logger.info("group %r is a classic group now: %s", former.group_id, downgrade.reason)
    former.retire()
    entry.group = group = Group(group_id=former.group_id, context=context)
    group.restore(downgrade.group)
    if downgrade.rebalances:
        group.rebalance(downgrade.reason)
