"""Tells whether this broker coordinates a group or a transactional id, and creates the internal topics.

NOT_COORDINATOR              another broker coordinates the group, or none now; clients then ask FindCoordinator
COORDINATOR_LOAD_IN_PROGRESS this broker will coordinate it when it has read the partition
INVALID_GROUP_ID             the id is empty: members can't use it, but offsets may be committed under it

The first client that looks for a coordinator of a group or makes one creates `__consumer_offsets`, the first one that
looks for that of a transactional id `__transaction_state`.
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
    """Return the internal topic, created if necessary. If that fails, log it and return None.

    A topic that was created without compaction is altered: retention would delete the coordinators' records.
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
FIRST_LOAD_SECONDS = 5.0  # for reading the empty partitions of a new topic


async def prepare_groups(services: Services) -> None:
    """Create `__consumer_offsets` unless it exists. If that fails, no group is coordinated."""
    if not services.groups.led.has_topic:
        await _prepare(services, CONSUMER_OFFSETS_NAME, is_new=True)


async def prepare_transactions(services: Services) -> None:
    """Create `__transaction_state` unless it exists, and wait until it is loaded for the first producer."""
    await _prepare(services, TRANSACTION_STATE_NAME, is_new=services.topics.get(TRANSACTION_STATE_NAME) is None)


async def _prepare(services: Services, topic: str, *, is_new: bool) -> None:
    with suppress(StoreError, StorageFailed):  # the latter ends the broker
        await ensure_internal_topic(services, topic)
    if is_new:
        with trio.move_on_after(FIRST_LOAD_SECONDS):
            await services.leadership.wait_loaded()


def is_coordinated_here(services: Services, group_id: str) -> bool:
    node = services.assignment.coordinator(group_id)
    return node is not None and node.node_id == services.node.node_id


def coordinator_error(services: Services, group_id: str) -> int:
    """Return NONE, or the error of any request about a group."""
    return services.groups.error_code(group_id) if is_coordinated_here(services, group_id) else NOT_COORDINATOR


async def lead_error(services: Services) -> int:
    """Return NOT_COORDINATOR if another broker has taken over, whose state may be newer."""
    # A log on a local disk takes commits from a superseded broker, too: looking at the bucket would not help there.
    return NONE if services.internal.is_last_word else await _lead_error(services)


async def _lead_error(services: Services) -> int:
    try:
        await services.transactions.confirm_lead()
    except KafkaError as exc:
        return exc.code
    return NONE


async def refusal_error(services: Services, error_codes: Collection[int]) -> int:
    """Return NOT_COORDINATOR if an error would end a static member and another broker has taken over."""
    return NONE if FATAL_TO_MEMBERS.isdisjoint(error_codes) else await _lead_error(services)


def membership_error(services: Services, group_id: str) -> int:
    """Return NONE, or the error of any request of a group's member."""
    return coordinator_error(services, group_id) if group_id else INVALID_GROUP_ID
