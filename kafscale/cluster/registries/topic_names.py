"""Valid names of topics, with Kafka's rules and messages (`org.apache.kafka.common.internals.Topic`)."""

from __future__ import annotations

import re

from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_TOPIC_EXCEPTION

NAME_MAX_LENGTH = 249  # 255 for a directory's name, less "-", a partition and the suffix of a deleted log
CLUSTER_METADATA_NAME = "__cluster_metadata"  # KRaft's own log, not a topic
CONSUMER_OFFSETS_NAME = "__consumer_offsets"
TRANSACTION_STATE_NAME = "__transaction_state"
INTERNAL_NAMES = frozenset({CONSUMER_OFFSETS_NAME, TRANSACTION_STATE_NAME, "__share_group_state"})

_LEGAL = re.compile(r"[a-zA-Z0-9._-]*")


def check_topic_name(name: str) -> None:
    """Raise KafkaError INVALID_TOPIC_EXCEPTION for an invalid name."""
    reason = _invalid_because(name)
    if reason is not None:
        raise KafkaError(INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def is_valid_topic_name(name: str) -> bool:
    return _invalid_because(name) is None


def is_internal(name: str) -> bool:
    """Tell whether this is the name of one of Kafka's own topics, which clients hide."""
    return name in INTERNAL_NAMES


def collision_key(name: str) -> str:
    """Return a key that only one topic may have: Kafka's metrics write `_` for `.`."""
    return name.replace(".", "_")


def _invalid_because(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_MAX_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {NAME_MAX_LENGTH}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None
