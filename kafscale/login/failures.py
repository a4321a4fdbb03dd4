"""Maps error codes to exceptions, with words for people who do not know Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafscale.errors import KafkaError
from kafscale.wire import error_codes

WORDS: Final[Mapping[int, str]] = {
    error_codes.OFFSET_OUT_OF_RANGE: "the log has no such offset: it is behind the end, or was deleted by retention",
    error_codes.UNKNOWN_TOPIC_OR_PARTITION: "it does not exist; `kafscale topics list` shows all topics",
    error_codes.LEADER_NOT_AVAILABLE: "no broker leads it just now; `kafscale partitions list` shows more",
    error_codes.NOT_LEADER_OR_FOLLOWER: "another broker leads it now; try again",
    error_codes.REQUEST_TIMED_OUT: "the broker was not done in time; whether it took effect is not known",
    error_codes.MESSAGE_TOO_LARGE: "a record is larger than max.message.bytes of the topic",
    error_codes.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is starting; try again",
    error_codes.COORDINATOR_NOT_AVAILABLE: "no broker coordinates it just now; try again",
    error_codes.NOT_COORDINATOR: "another broker coordinates it now; try again",
    error_codes.INVALID_TOPIC_EXCEPTION: "a name has 1 to 249 letters, digits, dots, underscores and hyphens",
    error_codes.INVALID_GROUP_ID: "a group needs a name that is not empty",
    error_codes.UNKNOWN_MEMBER_ID: "the group has members, which commit its offsets; stop them first",
    error_codes.TOPIC_AUTHORIZATION_FAILED: "this user has no right to it; `kafscale acls` gives rights",
    error_codes.GROUP_AUTHORIZATION_FAILED: "this user has no right to it; `kafscale acls` gives rights",
    error_codes.CLUSTER_AUTHORIZATION_FAILED: "this user has no right to do that; `kafscale acls` gives rights",
    error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user has no right to it; `kafscale acls` gives rights",
    error_codes.TOPIC_ALREADY_EXISTS: "there is one already",
    error_codes.KAFKA_STORAGE_ERROR: "the broker's disk is full or failed; its log says more",
    error_codes.NON_EMPTY_GROUP: "it has members; stop them first",
    error_codes.GROUP_ID_NOT_FOUND: "it does not exist; `kafscale groups list` shows all groups",
    error_codes.TRANSACTIONAL_ID_NOT_FOUND: "it does not exist; `kafscale transactions list` shows all",
    error_codes.UNSUPPORTED_VERSION: "the broker does not know this request, or not this version of it",
    error_codes.SECURITY_DISABLED: "the broker has no access control: start it with --authorizer acl",
    error_codes.BROKER_ID_NOT_REGISTERED: "it does not exist; `kafscale brokers list` shows all brokers",
}


# Kafka's own text for these says no more than the code does.
_SAYS_LITTLE: Final = frozenset({error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.SECURITY_DISABLED})


def failure(code: int, about: str, message: str | None = None) -> KafkaError:
    """Return the exception of an error code, with the broker's message or the code's meaning."""
    text = f"{about}: {error_codes.name(code)}"
    told = message or WORDS.get(code)
    return KafkaError(code, f"{text} ({told})" if told else text)


def check(code: int, about: str, message: str | None = None) -> None:
    """Raise KafkaError unless the code is 0. `message` is the broker's."""
    if code != error_codes.NONE:
        raise failure(code, about, None if code in _SAYS_LITTLE else message)
