"""How members go: they leave, or their time is up. With the last one of the consumer protocol the group may change."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kafscale.cluster.groups.consumer.deciding import Deciding
from kafscale.cluster.groups.consumer.members import Member
from kafscale.cluster.groups.consumer.migration import downgrade
from kafscale.cluster.groups.consumer.regexes import delete_unsubscribed

logger = logging.getLogger(__name__)


def fence(deciding: Deciding, members: Sequence[Member]) -> None:
    """Remove members with what they have; if all others use the classic protocol, the group becomes a classic one."""
    if not members:
        return
    for member in members:
        deciding.remove(member)
    if may_downgrade(deciding):
        downgrade(deciding, rebalances=True, reason="the last member of the consumer protocol has gone")
        return
    delete_unsubscribed(deciding)
    deciding.raise_epoch()


def may_downgrade(deciding: Deciding) -> bool:
    """Tell whether the group, as it is now, has members of the classic protocol only and may become a classic group."""
    state, settings = deciding.state, deciding.settings
    if not state.members or state.classic_count != len(state.members):
        return False
    if not settings.migration_policy.may_downgrade:
        logger.info("group %r can't become a classic group: group.consumer.migration.policy says no", state.group_id)
        return False
    if len(state.members) > settings.classic_max_size:
        logger.info("group %r can't become a classic group: it has more members than group.max.size", state.group_id)
        return False
    return True
