"""How far a stream goes: limits, restarts, new partitions, and what is lost on the way."""

import logging
from itertools import pairwise
from pathlib import Path

import pytest

from kafscale.spark.bucket.position import Position
from kafscale.spark.bucket.reading import DataLoss
from kafscale.spark.source.options import Given, ReadOptions, StreamOptions
from kafscale.spark.source.planning import Planner
from kafscale.spark.source.progress import StreamProgress
from kafscale.store.paths import SegmentKey
from tests.devtools.fakes.segment_objects import CREATED_MS, make_batches, version_2_objects


def put(directory: Path, base_offset: int, batch_count: int, *, partition: int = 0) -> None:
    """Three records a batch."""
    key = SegmentKey(topic="t", topic_id=bytes(16), partition=partition, base_offset=base_offset)
    version_2_objects(key, make_batches(base_offset, batch_count)).write_to(directory)


def remove(directory: Path, *, partition: int) -> None:
    """As retention does when all of a partition has expired."""
    found = [path for path in directory.rglob("*.*") if f"/{partition}/" in str(path.relative_to(directory))]
    assert found
    for path in found:
        path.unlink()


def at(offsets: dict[int, int], **topic_ids: str) -> Position:
    """Return a position in the topic t."""
    return Position(offsets={("t", index): offset for index, offset in offsets.items()}, topic_ids=topic_ids)


class Stream:
    """One run of a stream, as Spark drives it. Partitions are of the topic t."""

    def __init__(self, directory: Path, **options: str) -> None:
        given = Given({"store": f"file:{directory}", "subscribe": "t", **options})
        self.now = 0.0
        self.progress = StreamProgress(
            planner=Planner.of(ReadOptions.of(given), counts=True),
            options=StreamOptions.of(given),
            clock=lambda: self.now,
        )

    def latest(self) -> dict[int, int]:
        return {index: offset for (_, index), offset in self.progress.latest().offsets.items()}

    def initial(self) -> dict[int, int]:
        return {index: offset for (_, index), offset in self.progress.initial().offsets.items()}

    def read(self, start: dict[int, int], end: dict[int, int]) -> dict[int, list[int]]:
        splits = self.progress.splits(at(start), at(end))
        found: dict[int, list[int]] = {}
        for split in splits:
            for part in self.progress.planner.reader(["offset"]).read(split):
                found.setdefault(split.partition, []).extend(part["offset"].to_pylist())
        return found


@pytest.fixture
def directory(tmp_path):
    """t-0 has 0 to 29, t-1 has 0 to 5."""
    put(tmp_path, 0, 10)
    put(tmp_path, 0, 2, partition=1)
    return tmp_path


def test_a_stream_begins_at_the_end_by_default(directory):
    stream = Stream(directory)
    assert stream.latest() == {0: 30, 1: 6}
    put(directory, 30, 1)
    assert stream.initial() == {0: 30, 1: 6}
    assert stream.latest() == {0: 33, 1: 6}
    assert stream.read({0: 30, 1: 6}, {0: 33, 1: 6}) == {0: [30, 31, 32]}


def test_a_stream_begins_at_its_starting_option(directory):
    assert Stream(directory, startingOffsets="earliest").initial() == {0: 0, 1: 0}
    assert Stream(directory, startingOffsets='{"t":{"0":7,"1":-1}}').initial() == {0: 7, 1: 6}
    assert Stream(directory, startingTimestamp=str(CREATED_MS + 4)).initial() == {0: 4, 1: 4}


def test_offsets_are_shared_by_size(directory):
    stream = Stream(directory, startingOffsets="earliest", maxOffsetsPerTrigger="12")
    assert stream.latest() == {0: 10, 1: 2}
    assert stream.latest() == {0: 20, 1: 4}
    assert stream.latest() == {0: 30, 1: 6}
    assert stream.latest() == {0: 30, 1: 6}


def test_the_stream_position_given_by_spark_is_used(directory):
    progress = Stream(directory, maxOffsetsPerTrigger="12").progress
    for _ in range(2):
        assert progress.latest(at({0: 0, 1: 0})).offsets == at({0: 10, 1: 2}).offsets


def test_a_spark_that_asks_again_gets_all_that_was_there_at_first_by_the_limits(directory, caplog):
    stream = Stream(directory, startingOffsets="earliest", maxOffsetsPerTrigger="18", minOffsetsPerTrigger="18")
    stream.progress.stop_at_present()
    put(directory, 30, 1)
    put(directory, 0, 1, partition=2)
    assert [stream.latest() for _ in range(3)] == [{0: 15, 1: 3, 2: 0}, {0: 30, 1: 6, 2: 0}, {0: 30, 1: 6, 2: 0}]
    assert not caplog.text
    assert Stream(directory, startingOffsets="earliest").latest() == {0: 33, 1: 6, 2: 3}


def test_a_trigger_that_wants_all_gets_all(directory):
    progress = Stream(
        directory, startingOffsets="earliest", maxOffsetsPerTrigger="2", minOffsetsPerTrigger="1"
    ).progress
    assert progress.latest(is_limited=False).offsets == at({0: 30, 1: 6}).offsets


def test_a_small_partition_gets_one_offset_at_least(directory):
    assert Stream(directory, startingOffsets="earliest", maxOffsetsPerTrigger="2").latest() == {0: 1, 1: 1}


def test_bytes_are_shared_by_size(directory):
    stream = Stream(directory, startingOffsets="earliest", maxBytesPerTrigger="1")
    ends = [stream.latest() for _ in range(20)]
    assert ends[-1] == {0: 30, 1: 6}
    assert all(before[0] <= after[0] for before, after in pairwise(ends))
    assert Stream(directory, startingOffsets="earliest", maxBytesPerTrigger="1000000").latest() == {0: 30, 1: 6}


def test_a_limited_stream_reads_everything_once(directory):
    stream = Stream(directory, startingOffsets="earliest", maxOffsetsPerTrigger="7", maxBytesPerTrigger="600")
    found: dict[int, list[int]] = {0: [], 1: []}
    start: dict[int, int] | None = None
    for _ in range(30):
        end = stream.latest()
        start = stream.initial() if start is None else start
        for index, offsets in stream.read(start, end).items():
            found[index] += offsets
        start = end
    assert found == {0: list(range(30)), 1: list(range(6))}


def test_the_available_now_warning_is_logged_once_for_a_limited_stream(directory, caplog):
    stream = Stream(directory, startingOffsets="earliest", maxOffsetsPerTrigger="12")
    for _ in range(3):
        stream.latest()
    assert caplog.text.count("Trigger.AvailableNow") == 1
    caplog.clear()
    Stream(directory, startingOffsets="earliest", maxOffsetsPerTrigger="100").latest()
    Stream(directory, startingOffsets="earliest", maxOffsetsPerTrigger="12", warnOfAvailableNow="false").latest()
    assert not caplog.text


def test_a_batch_waits_for_its_size_but_not_too_long(directory):
    stream = Stream(directory, minOffsetsPerTrigger="5", maxTriggerDelay="10s", startingOffsets="earliest")
    assert stream.latest() == {0: 30, 1: 6}
    put(directory, 30, 1)
    assert stream.latest() == {0: 30, 1: 6}
    put(directory, 33, 1)
    assert stream.latest() == {0: 36, 1: 6}
    put(directory, 36, 1)
    stream.now = 9.9
    assert stream.latest() == {0: 36, 1: 6}
    stream.now = 10.0
    assert stream.latest() == {0: 39, 1: 6}


def test_a_restarted_stream_continues_after_its_last_batch(directory):
    stream = Stream(directory, startingOffsets="earliest", maxOffsetsPerTrigger="12")
    assert stream.read({0: 10, 1: 2}, {0: 10, 1: 2}) == {}
    assert stream.latest() == {0: 20, 1: 4}


def test_a_batch_that_was_planned_before_a_restart_is_read_again(directory):
    stream = Stream(directory, startingOffsets="earliest")
    stream.read({0: 20, 1: 4}, {0: 20, 1: 4})
    assert stream.read({0: 10, 1: 4}, {0: 20, 1: 4}) == {0: list(range(10, 20))}
    assert stream.latest() == {0: 30, 1: 6}


def test_a_first_batch_at_the_end_that_is_read_again_later_loses_nothing(directory):
    first = Stream(directory)
    end = first.latest()
    put(directory, 30, 1)
    second = Stream(directory)
    second.read(end, end)
    assert second.read(second.initial(), end) == {}
    assert second.read(end, second.latest()) == {0: [30, 31, 32]}


def test_a_first_batch_that_is_read_again_minds_no_partition_that_came_since(directory):
    first = Stream(directory, startingOffsets="earliest")
    start, end = first.initial(), first.latest()
    put(directory, 0, 1, partition=7)
    again = Stream(directory, startingOffsets="earliest")
    began = again.initial()
    assert set(began) - set(start) == {7}
    assert again.read(began, end) == first.read(start, end)


def test_a_partition_that_is_new_begins_at_its_start(directory):
    stream = Stream(directory, startingOffsets="latest")
    start = stream.latest()
    put(directory, 0, 1, partition=2)
    end = stream.latest()
    assert end == {0: 30, 1: 6, 2: 3}
    assert stream.read(start, end) == {2: [0, 1, 2]}


def test_a_new_partition_without_its_start_is_reported_as_a_loss(directory, caplog):
    stream = Stream(directory, failOnDataLoss="false")
    start = stream.latest()
    put(directory, 9, 1, partition=2)
    assert stream.read(start, stream.latest()) == {2: [9, 10, 11]}
    assert "partition 2 of topic 't' is new, and begins at 9" in caplog.text
    with pytest.raises(DataLoss, match="begins at 9"):
        Stream(directory).read(start, {0: 30, 1: 6, 2: 12})


def test_a_fully_expired_partition_keeps_its_offset(directory):
    stream = Stream(directory)
    start = stream.latest()
    remove(directory, partition=1)
    assert stream.latest() == start
    put(directory, 6, 1, partition=1)
    assert stream.read(start, stream.latest()) == {1: [6, 7, 8]}


def test_offsets_that_went_back_are_reported_as_a_loss(directory):
    with pytest.raises(DataLoss, match="partition 0 of topic 't' went back from offset 40 to 30"):
        Stream(directory, startingOffsets="earliest").read({0: 40, 1: 6}, {0: 30, 1: 6})
    with pytest.raises(DataLoss, match="partition 5 of topic 't' has gone"):
        Stream(directory).read({0: 30, 1: 6, 5: 1}, {0: 30, 1: 6})


def test_the_start_of_a_stream_is_logged(directory, caplog):
    with caplog.at_level(logging.INFO):
        Stream(directory).initial()
    assert "the stream begins at" in caplog.text


def test_a_replaced_segment_is_read_again(directory):
    stream = Stream(directory, startingOffsets="earliest")
    stream.latest()
    remove(directory, partition=1)
    put(directory, 0, 3, partition=1)
    assert stream.latest() == {0: 30, 1: 9}


def test_metrics_show_the_lag_behind_the_last_planned_batch(directory):
    stream = Stream(directory, startingOffsets="earliest", maxOffsetsPerTrigger="12")
    start, end = stream.progress.initial(), stream.progress.latest()
    assert end.offsets == {("t", 0): 10, ("t", 1): 2}
    metrics = stream.progress.metrics(CREATED_MS + 1_011)
    assert metrics["description"] == "KafScale[t]"
    assert metrics["recordsBehind"] == 20 + 4
    assert metrics["bytesBehind"] == sum(map(len, [*make_batches(9, 7), *make_batches(0, 2)]))
    assert metrics["secondsBehind"] == 1.009  # of offset 2 of t-1, the last of its batch
    assert metrics["taskGets"] == 0
    stream.progress.tasks(start, end)
    after = stream.progress.metrics(CREATED_MS)
    assert after["taskGets"] == 2
    assert after["planningGets"] >= metrics["planningGets"] > 0
    assert after["planningLists"] > metrics["planningLists"] > 0
    assert after["secondsBehind"] == 0.0


def test_metrics_of_a_stream_that_has_caught_up_are_0(directory):
    stream = Stream(directory, startingOffsets="earliest")
    stream.progress.latest()
    metrics = stream.progress.metrics(CREATED_MS + 60_000)
    assert (metrics["recordsBehind"], metrics["bytesBehind"], metrics["secondsBehind"]) == (0, 0, 0.0)
