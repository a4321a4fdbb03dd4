from __future__ import annotations

import warnings

from kafscale.wire import error_codes

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python loads its schemas by a deprecated function
    import kafka.errors

# kafka-python spells these in its own way
OTHER_SPELLINGS = {
    -1: "UNKNOWN",
    0: "NO_ERROR",
    6: "NOT_LEADER_FOR_PARTITION",
    10: "MESSAGE_SIZE_TOO_LARGE",
    17: "INVALID_TOPIC",
    39: "INVALID_REPLICATION_ASSIGNMENT",
}


def test_error_codes_match_those_of_kafka_python() -> None:
    theirs = {
        error.errno: error
        for error in vars(kafka.errors).values()
        if isinstance(error, type) and isinstance(getattr(error, "errno", None), int)
    }
    assert len(theirs) > 100
    for code, error in theirs.items():
        assert OTHER_SPELLINGS.get(code, error_codes.NAMES[code]) == error.message
        assert error.retriable == (code in error_codes.RETRIABLE) or code == error_codes.CORRUPT_MESSAGE


def test_codes_are_without_a_gap() -> None:
    assert sorted(error_codes.NAMES) == list(range(-1, 134))


def test_names() -> None:
    assert error_codes.name(3) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert error_codes.name(999) == "error 999"
