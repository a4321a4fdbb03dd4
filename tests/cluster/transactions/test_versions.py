"""Error codes by the version of a request, and what another broker's answer to a marker means."""

import pytest

from kafscale.cluster.transactions import versions as v
from kafscale.cluster.transactions.marker_sender import MarkerFate, marker_fate
from kafscale.wire import error_codes as e


@pytest.mark.parametrize(
    ("first", "since"),
    [
        (v.INIT_PRODUCER_ID_FENCED_VERSION, 4),
        (v.ADD_PARTITIONS_FENCED_VERSION, 2),
        (v.ADD_OFFSETS_FENCED_VERSION, 2),
        (v.END_TXN_FENCED_VERSION, 2),
    ],
)
def test_clients_too_old_for_producer_fenced_hear_of_an_invalid_epoch(first: int, since: int) -> None:
    assert first == since
    assert v.fenced_code(e.PRODUCER_FENCED, since - 1, first) == e.INVALID_PRODUCER_EPOCH
    assert v.fenced_code(e.PRODUCER_FENCED, since, first) == e.PRODUCER_FENCED
    assert v.fenced_code(e.INVALID_TXN_STATE, 0, first) == e.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("bump_version", "since"),
    [
        (v.ADD_PARTITIONS_BUMP_VERSION, 4),
        (v.END_TXN_BUMP_VERSION, 5),
        (v.PRODUCE_BUMP_VERSION, 12),
        (v.TXN_OFFSET_COMMIT_BUMP_VERSION, 5),
    ],
)
def test_the_transaction_version_depends_on_the_request_version(bump_version: int, since: int) -> None:
    assert [v.transaction_version(each, bump_version) for each in (0, since - 1, since)] == [0, 0, 2]


@pytest.mark.parametrize(
    ("code", "by_version"),
    [
        (e.NONE, {10: e.NONE, 11: e.NONE, 12: e.NONE}),
        (e.PRODUCER_FENCED, dict.fromkeys((10, 11, 12), e.INVALID_PRODUCER_EPOCH)),
        (
            e.TRANSACTION_ABORTABLE,
            {10: e.INVALID_TXN_STATE, 11: e.TRANSACTION_ABORTABLE, 12: e.TRANSACTION_ABORTABLE},
        ),
        (
            e.CONCURRENT_TRANSACTIONS,
            {10: e.NOT_ENOUGH_REPLICAS, 11: e.NOT_ENOUGH_REPLICAS, 12: e.CONCURRENT_TRANSACTIONS},
        ),
        (e.NOT_COORDINATOR, dict.fromkeys((10, 12), e.NOT_ENOUGH_REPLICAS)),
        (e.COORDINATOR_LOAD_IN_PROGRESS, dict.fromkeys((10, 12), e.NOT_ENOUGH_REPLICAS)),
        (e.COORDINATOR_NOT_AVAILABLE, dict.fromkeys((10, 12), e.NOT_ENOUGH_REPLICAS)),
        (e.NETWORK_EXCEPTION, dict.fromkeys((10, 12), e.NOT_ENOUGH_REPLICAS)),
        (e.INVALID_PRODUCER_ID_MAPPING, dict.fromkeys((10, 12), e.INVALID_PRODUCER_ID_MAPPING)),
    ],
)
def test_produce_error_codes_fit_the_request_version(code: int, by_version: dict[int, int]) -> None:
    assert {version: v.produce_code(code, version) for version in by_version} == by_version


@pytest.mark.parametrize(
    ("code", "by_version"),
    [
        (e.NONE, dict.fromkeys((0, 5), e.NONE)),
        (e.PRODUCER_FENCED, dict.fromkeys((3, 5), e.INVALID_PRODUCER_EPOCH)),
        (e.TRANSACTION_ABORTABLE, {3: e.INVALID_TXN_STATE, 4: e.TRANSACTION_ABORTABLE, 5: e.TRANSACTION_ABORTABLE}),
        (e.NETWORK_EXCEPTION, {1: e.COORDINATOR_NOT_AVAILABLE, 2: e.COORDINATOR_LOAD_IN_PROGRESS}),
        (e.COORDINATOR_LOAD_IN_PROGRESS, {1: e.COORDINATOR_NOT_AVAILABLE, 2: e.COORDINATOR_LOAD_IN_PROGRESS}),
        (e.CONCURRENT_TRANSACTIONS, dict.fromkeys((4, 5), e.CONCURRENT_TRANSACTIONS)),
    ],
)
def test_txn_offset_commit_error_codes_fit_the_request_version(code: int, by_version: dict[int, int]) -> None:
    assert {version: v.txn_offset_commit_code(code, version) for version in by_version} == by_version


@pytest.mark.parametrize(
    ("code", "fate"),
    [
        (e.NONE, MarkerFate.WRITTEN),
        (e.UNSUPPORTED_FOR_MESSAGE_FORMAT, MarkerFate.WRITTEN),
        (e.INVALID_PRODUCER_EPOCH, MarkerFate.WRITTEN),
        (e.TRANSACTION_COORDINATOR_FENCED, MarkerFate.FENCED),
        (e.NOT_LEADER_OR_FOLLOWER, MarkerFate.RETRY),
        (e.UNKNOWN_TOPIC_OR_PARTITION, MarkerFate.RETRY),
        (e.NOT_ENOUGH_REPLICAS, MarkerFate.RETRY),
        (e.REQUEST_TIMED_OUT, MarkerFate.RETRY),
        (e.UNKNOWN_SERVER_ERROR, MarkerFate.RETRY),
    ],
)
def test_the_answer_to_a_marker_decides_its_fate(code: int, fate: MarkerFate) -> None:
    assert marker_fate(code) is fate
