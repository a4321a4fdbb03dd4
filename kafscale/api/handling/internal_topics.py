"""Internal topics come to be when they are first needed: when a client first asks for a coordinator."""

from __future__ import annotations

import logging

from kafscale.api.handling.services import Services
from kafscale.cluster.registries.topics import INTERNAL_OVERRIDES, NewConfigs, NewTopic, Topic
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import TOPIC_ALREADY_EXISTS

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
