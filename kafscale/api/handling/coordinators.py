"""Coordinators of groups and transactions: whether this broker is the one, and the error if it is not.

NOT_COORDINATOR              another broker coordinates the group, or none just now; clients then ask FindCoordinator
COORDINATOR_LOAD_IN_PROGRESS this broker will coordinate it, as soon as it has read its partition
INVALID_GROUP_ID             the id is empty, which no member can use; offsets may be committed under it

`__consumer_offsets` is created when the first client looks for a coordinator, or makes a group without having looked.
`__transaction_state` is created when the first producer looks for the coordinator of a transactional id.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Final

import trio

from kafscale.api.handling.services import Services
from kafscale.cluster.registries.topic_names import CONSUMER_OFFSETS_NAME, TRANSACTION_STATE_NAME
from kafscale.cluster.registries.topics import INTERNAL_OVERRIDES, NewConfigs, NewTopic, Topic
from kafscale.errors import KafkaError, StorageFailed, StoreError
from kafscale.wire.error_codes import (
    FENCED_INSTANCE_ID,
    INVALID_GROUP_ID,
    NONE,
    NOT_COORDINATOR,
    TOPIC_ALREADY_EXISTS,
    UNRELEASED_INSTANCE_ID,
)

logger = logging.getLogger(__name__)


async def ensure_internal_topic(services: Services, name: str) -> Topic | None:
    """Return the internal topic, which is created unless it is there; None if it can't be, which is logged.

    One that somebody has created without compaction gets it: retention would delete what coordinators know.
    """
    topic = services.topics.get(name)
    if topic is None:
        (outcome,) = await services.topics.create([NewTopic(name=name)])
        if isinstance(outcome, KafkaError) and outcome.code != TOPIC_ALREADY_EXISTS:
            logger.warning("topic %s can't be created: %s", name, outcome)
        topic = services.topics.get(name)
    if topic is not None and topic.config.cleanup_policy != ("compact",):
        change = NewConfigs(name=name, overrides=lambda overrides: {**overrides, **INTERNAL_OVERRIDES})
        (outcome,) = await services.topics.alter([change])
        if isinstance(outcome, KafkaError):
            logger.warning("topic %s can't be compacted: %s", name, outcome)
            return None
        topic = services.topics.get(name)
    return topic


FATAL_TO_MEMBERS: Final = frozenset({FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID})  # after which a client gives up
FIRST_LOAD_SECONDS = 5.0  # in which the partitions of a new topic are read, which are empty


async def prepare_groups(services: Services) -> None:
    """Make `__consumer_offsets`, unless it is there. If that fails, no group is coordinated."""
    if not services.groups.led.has_topic:
        await _prepare(services, CONSUMER_OFFSETS_NAME, is_new=True)


async def prepare_transactions(services: Services) -> None:
    """Make `__transaction_state`, unless it is there, and let it be read, so that the first producer need not wait."""
    await _prepare(services, TRANSACTION_STATE_NAME, is_new=services.topics.get(TRANSACTION_STATE_NAME) is None)


async def _prepare(services: Services, topic: str, *, is_new: bool) -> None:
    with suppress(StoreError, StorageFailed):  # the latter ends the broker
        await ensure_internal_topic(services, topic)
    if is_new:
        with trio.move_on_after(FIRST_LOAD_SECONDS):
            await services.leadership.wait_loaded()


def is_coordinated_here(services: Services, group_id: str) -> bool:
    """Tell whether requests about the group are for this broker."""
    node = services.assignment.coordinator(group_id)
    return node is not None and node.node_id == services.node.node_id


def coordinator_error(services: Services, group_id: str) -> int:
    """The error code of whatever is asked of a group here."""
    return services.groups.error_code(group_id) if is_coordinated_here(services, group_id) else NOT_COORDINATOR


async def lead_error(services: Services) -> int:
    """Check the claim, and return NOT_COORDINATOR if another broker leads, so that no stale state is answered.

    What that one has acknowledged is not known here. A log on a local disk takes commits from a superseded broker, too:
    there the answer needs no look at the bucket; with several brokers, as long as this one may acknowledge.
    """
    return NONE if services.internal.is_last_word else await _lead_error(services)


async def _lead_error(services: Services) -> int:
    try:
        await services.transactions.confirm_lead()
    except KafkaError as exc:
        return exc.code
    return NONE


async def refusal_error(services: Services, error_codes: Collection[int]) -> int:
    """Look at the claim if one of the error codes would end a member; return NOT_COORDINATOR if another broker leads.

    To that one, who has the place of a static member may be somebody else.
    """
    return NONE if FATAL_TO_MEMBERS.isdisjoint(error_codes) else await _lead_error(services)


def membership_error(services: Services, group_id: str) -> int:
    """The error code of whatever a member of a group asks here."""
    return coordinator_error(services, group_id) if group_id else INVALID_GROUP_ID
