"""What the log says of Trigger.AvailableNow, which a source in Python can't tell from other triggers."""

from pathlib import Path

import pytest

from kafscale.spark.source.options import Given, ReadOptions, StreamOptions
from kafscale.store.paths import SegmentKey
from tests.devtools.segment_objects import make_batches, version_2_objects

pytestmark = pytest.mark.spark  # it needs pyspark, and starts none


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("warns", [True, False])
def test_queries_with_state_lost_results_under_available_now_and_nothing_said_so(
    tmp_path: Path, monkeypatch, caplog, is_known: bool, warns: bool
) -> None:
    from kafscale.spark.source import source

    monkeypatch.setattr(source, "_AvailableNow", type("SupportsTriggerAvailableNow", (), {}) if is_known else object)
    key = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=0)
    version_2_objects(key, make_batches(0, 1)).write_to(tmp_path)
    given = Given({"store": f"file:{tmp_path}", "subscribe": "t", "warnOfAvailableNow": str(warns).lower()})
    reader = source.StreamReader(options=ReadOptions.of(given), limits=StreamOptions.of(given), columns=["value"])
    for _ in range(3):
        reader.latestOffset()
    reader.stop()
    told = [each.getMessage() for each in caplog.records if "watermark" in each.getMessage()]
    assert len(told) == (warns and not is_known)
    assert all("windows in append mode" in each and "outer joins" in each for each in told)
