"""Error codes in words."""

from __future__ import annotations

import pytest

from kafscale.errors import KafkaError
from kafscale.login.failures import WORDS, check, failure
from kafscale.wire import error_codes


def test_an_error_message_explains_the_kafka_error_code() -> None:
    told = str(failure(error_codes.UNKNOWN_TOPIC_OR_PARTITION, "topic 'nope'"))
    assert told == (
        "topic 'nope': UNKNOWN_TOPIC_OR_PARTITION (it does not exist; `kafscale topics list` shows all topics)"
    )


def test_a_specific_broker_message_replaces_our_explanation() -> None:
    with pytest.raises(KafkaError, match=r"^t: TOPIC_ALREADY_EXISTS \(Topic 't' already exists\.\)$"):
        check(error_codes.TOPIC_ALREADY_EXISTS, "t", "Topic 't' already exists.")
    with pytest.raises(KafkaError, match=r"^t: UNKNOWN_TOPIC_OR_PARTITION \(it does not exist; "):
        check(error_codes.UNKNOWN_TOPIC_OR_PARTITION, "t", "This server does not host this topic-partition.")


def test_a_code_without_words_keeps_its_name() -> None:
    assert error_codes.INVALID_TIMESTAMP not in WORDS
    assert str(failure(error_codes.INVALID_TIMESTAMP, "t")) == "t: INVALID_TIMESTAMP"
    check(error_codes.NONE, "t")
