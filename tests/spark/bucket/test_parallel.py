"""Objects that are got some by a turn: each comes to its own key, and fails by itself."""

import threading

import pytest

from kafscale.errors import DamagedObject, NotFound, StoreUnavailable
from kafscale.spark.bucket.bucket import TURN_MAX_COUNT, get_many


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100, 1000])
def test_each_comes_in_its_place(count):
    found = get_many(lambda key: -key, range(count), at_once_count=8)
    assert [each.result() for each in found] == [-key for key in range(count)]


def test_few_are_all_under_way_at_once():
    met = threading.Barrier(8)
    found = get_many(lambda key: met.wait(timeout=30), range(8), at_once_count=8)
    assert sorted(each.result() for each in found) == list(range(8))


def test_a_missing_or_damaged_object_fails_alone():
    def get(key):
        if key == 3:
            raise NotFound("gone")
        if key == 4:
            raise DamagedObject("damaged")
        return key

    found = get_many(get, range(10), at_once_count=1)
    for key, error in ((3, NotFound), (4, DamagedObject)):
        with pytest.raises(error):
            found[key].result()
    assert [found[key].result() for key in (0, 1, 2, 5, 6, 7, 8, 9)] == [0, 1, 2, 5, 6, 7, 8, 9]


def test_a_store_that_does_not_answer_is_not_waited_for_once_more_for_each():
    tried = []

    def get(key):
        tried.append(key)
        if key >= 5:
            raise StoreUnavailable("no answer")
        return key

    found = get_many(get, range(TURN_MAX_COUNT), at_once_count=1)
    assert [each.result() for each in found[:5]] == list(range(5))
    for each in found[5:]:
        with pytest.raises(StoreUnavailable):
            each.result()
    assert tried == list(range(6))
