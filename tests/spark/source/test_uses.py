"""What several scans of one `load()` leave out is what none of them needs."""

import os

import pytest

from kafscale.spark.bucket.splits import Period
from kafscale.spark.source.planning import QueryBounds, Uses, forget

NOTHING = QueryBounds()
LATE = QueryBounds(partitions={0}, start_offset=90, period=Period(first_ms=5000))
EARLY = QueryBounds(partitions={1, 2}, start_offset=0, end_offset=10, period=Period(first_ms=0, last_ms=100))


@pytest.mark.parametrize(
    ("one", "other", "either"),
    [
        (LATE, LATE, LATE),
        (LATE, EARLY, QueryBounds(partitions={0, 1, 2}, start_offset=0, period=Period(first_ms=0))),
        (EARLY, LATE, QueryBounds(partitions={0, 1, 2}, start_offset=0, period=Period(first_ms=0))),
        (LATE, NOTHING, NOTHING),
        (NOTHING, EARLY, NOTHING),
        (QueryBounds(end_offset=5), QueryBounds(end_offset=7), QueryBounds(end_offset=7)),
        (
            QueryBounds(period=Period(last_ms=5)),
            QueryBounds(period=Period(last_ms=7)),
            QueryBounds(period=Period(last_ms=7)),
        ),
    ],
)
def test_bounds_of_two_conditions_cover_both(one, other, either):
    assert one.either(other) == either


def test_each_use_gets_the_combined_bounds_of_all_uses_so_far(tmp_path):
    uses = Uses(tmp_path / "load")
    assert uses.note(LATE) == LATE
    assert uses.note(EARLY) == LATE.either(EARLY)
    assert uses.note(LATE) == LATE.either(EARLY)
    assert Uses(tmp_path / "other").note(EARLY) == EARLY


def test_old_notes_are_forgotten(tmp_path):
    for name in ("old", "new"):
        Uses(tmp_path / name).note(LATE)
    os.utime(tmp_path / "old", (0, 0))
    forget(tmp_path, 60.0)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
