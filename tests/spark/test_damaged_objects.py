"""Every reader of Spark's over every kind of damage to one object of a segment: what is good is read, exactly, and what
is lost is an error, or reported under failOnDataLoss=false. No reader fails in another way, none returns what is wrong.

The damage is there when a query is planned, or comes between planning and reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kafscale.formats.segment import decode_footer
from kafscale.spark.bucket.position import measure
from kafscale.spark.bucket.reading import DataLoss
from kafscale.spark.bucket.splits import Split
from kafscale.spark.source.options import BatchOptions, Given, ReadOptions, StreamOptions
from kafscale.spark.source.planning import Planner, QueryBounds
from kafscale.spark.source.progress import StreamProgress
from kafscale.store.paths import SegmentKey
from tests.devtools.fakes.segment_objects import (
    CREATED_MS,
    SegmentObjects,
    make_batches,
    version_1_key,
    version_1_objects,
    version_2_objects,
)

SEGMENTS, RECORDS = 4, 9  # record n has the timestamp CREATED_MS + n, and its value begins with n
KFS = ["empty", "half", "cut off", "without footer", "garbage", "foreign", "missing"]
INDEX = ["empty", "half", "garbage", "foreign", "another attempt's", "missing"]
DAMAGES = [("kfs", kind) for kind in KFS] + [("index", kind) for kind in INDEX]
CASES = [(*each, "before planning") for each in DAMAGES]
CASES += [("kfs", kind, "before reading") for kind in KFS]  # when no .index is read any more
READABLE = ("cut off", "without footer")  # kinds of damage to a .kfs that its .index makes up for


def key_of(number: int, generation: int = 0) -> SegmentKey:
    """Base offsets have two digits, so that all segments are of one size."""
    base_offset = FIRST + number * RECORDS
    return SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=base_offset, generation=generation)


FIRST = 10
END = FIRST + SEGMENTS * RECORDS


def segments(version: int, generation: int = 0) -> Sequence[SegmentObjects]:
    keys = [key_of(number, generation) for number in range(SEGMENTS)]
    if version == 1:
        old = [version_1_key("t", 0, key.base_offset) for key in keys]
        return [version_1_objects(key, make_batches(key.base_offset, RECORDS // 3), interval=3) for key in old]
    return [version_2_objects(key, make_batches(key.base_offset, RECORDS // 3)) for key in keys]


def damage(directory: Path, written: Sequence[SegmentObjects], number: int, half: str, kind: str) -> None:
    one, foreign = written[number], written[(number + 2) % SEGMENTS]
    path = directory / one.key.of_kind(half).key
    if kind == "missing":
        path.unlink()
        return
    content = one.kfs if half == "kfs" else one.index
    other = version_2_objects(key_of(number), make_batches(FIRST + number * RECORDS, 2))
    changed: dict[str, Callable[[], bytes]] = {
        "empty": lambda: b"",
        "half": lambda: content[: len(content) // 3],
        "cut off": lambda: content[:-1],
        "without footer": lambda: content[: decode_footer(content, one.key.key).end_position],
        "garbage": lambda: b"garbage" * 100,
        "foreign": lambda: foreign.kfs if half == "kfs" else foreign.index,
        "another attempt's": lambda: other.index,
    }
    path.write_bytes(changed[kind]())


class Job:
    """One job over the bucket; `between` is done between planning and reading."""

    def __init__(self, directory: Path, between: Callable[[], None], *, fails: bool) -> None:
        self.between = between
        loss = "true" if fails else "false"
        self.given = Given({"store": f"file:{directory}", "assign": '{"t":[0]}', "failOnDataLoss": loss})

    @property
    def planner(self) -> Planner:
        return Planner.of(ReadOptions.of(self.given))

    def batch(self, **options: str) -> list[int]:
        self.given.values |= {name.lower(): value for name, value in options.items()}
        return self.read(list(self.planner.batch(BatchOptions.of(self.given), QueryBounds())))

    def read(self, splits: Sequence[Split]) -> list[int]:
        self.between()
        found: list[int] = []
        for split in splits:
            for records in self.planner.reader(["offset", "value"]).read(split):
                for row in records.to_pylist():
                    assert row["value"].startswith(b"%d." % row["offset"])
                    found.append(row["offset"])
        return found

    def stream(self, **options: str) -> list[int]:
        self.given.values |= {"startingoffsets": "earliest", **{name.lower(): each for name, each in options.items()}}
        progress = StreamProgress(planner=self.planner, options=StreamOptions.of(self.given))
        position, found = progress.initial(), []
        for _ in range(100):
            end = progress.latest()
            if end == position:
                return found
            found += self.read(progress.splits(position, end))
            position = end
        raise AssertionError("the stream does not come to an end")


# ---- the readers: each returns the offsets that it has read ---------------------------------------------------------


def batch(job: Job) -> list[int]:
    return job.batch()


def batch_from_within_by_small_tasks(job: Job) -> list[int]:
    return job.batch(startingOffsets=f'{{"t":{{"0":{FIRST + RECORDS + 4}}}}}', maxRecordsPerPartition="3")


def batch_from_a_timestamp(job: Job) -> list[int]:
    return job.batch(startingTimestamp=str(CREATED_MS + FIRST + 4))


def batch_from_a_later_timestamp(job: Job) -> list[int]:
    return job.batch(startingTimestamp=str(CREATED_MS + FIRST + RECORDS + 4))


def stream_by_bytes(job: Job) -> list[int]:
    return job.stream(maxBytesPerTrigger="300")


def stream_by_offsets(job: Job) -> list[int]:
    return job.stream(maxOffsetsPerTrigger="5")


READERS = {
    batch: FIRST,
    batch_from_within_by_small_tasks: FIRST + RECORDS + 4,
    batch_from_a_timestamp: FIRST + 4,
    batch_from_a_later_timestamp: FIRST + RECORDS + 4,
    stream_by_bytes: FIRST,
    stream_by_offsets: FIRST,
}


def good(number: int, half: str, kind: str) -> list[int]:
    lost = range(FIRST + number * RECORDS, FIRST + (number + 1) * RECORDS)
    is_lost = half == "kfs" and kind not in READABLE
    return [offset for offset in range(FIRST, END) if not (is_lost and offset in lost)]


@pytest.fixture
def written(tmp_path) -> Iterator[Sequence[SegmentObjects]]:
    made = segments(2)
    for each in made:
        each.write_to(tmp_path)
    return made


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@pytest.mark.parametrize("number", [1, SEGMENTS - 1], ids=["in the middle", "at the end"])
@pytest.mark.parametrize(("half", "kind", "when"), [pytest.param(*each, id=" ".join(each)) for each in CASES])
def test_no_reader_loses_or_invents_silently(tmp_path, written, caplog, reader, number, half, kind, when):
    todo = [lambda: damage(tmp_path, written, number, half, kind)]

    def act() -> None:
        if todo:
            todo.pop()()

    if when == "before planning":
        act()
    wanted = [offset for offset in range(FIRST, END) if offset >= READERS[reader]]
    expected = [offset for offset in good(number, half, kind) if offset in wanted]
    found = reader(Job(tmp_path, act, fails=False))
    if half == "kfs" and when == "before reading":  # what was planned is read as far as its bytes are good
        assert set(expected) <= set(found) <= set(wanted)
        assert found == sorted(set(found))
    else:
        assert found == expected
    if found != wanted and not (kind == "missing" and number == SEGMENTS - 1 and when == "before planning"):
        assert "data loss, and failOnDataLoss is off" in caplog.text
        for each in written:
            each.write_to(tmp_path)
        todo.append(lambda: damage(tmp_path, written, number, half, kind))
        if when == "before planning":
            act()
        with pytest.raises(DataLoss):
            reader(Job(tmp_path, act, fails=True))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@pytest.mark.parametrize("number", range(SEGMENTS))
def test_readers_handle_damage_to_merged_segments(tmp_path, caplog, reader, number):
    """One at the beginning was left out, and nothing said: what was read began behind it."""
    made = segments(2, generation=1)
    for each in made:
        each.write_to(tmp_path)
    for half in ("kfs", "index"):
        damage(tmp_path, made, number, half, "garbage")
    is_before = reader is batch_from_a_later_timestamp and not number  # who knows what it had
    wanted = [offset for offset in range(FIRST, END) if is_before or offset >= READERS[reader]]
    expected = [offset for offset in good(number, "kfs", "garbage") if offset in wanted]
    assert reader(Job(tmp_path, lambda: None, fails=False)) == expected
    if expected != wanted:
        assert "data loss, and failOnDataLoss is off" in caplog.text
        with pytest.raises(DataLoss):
            reader(Job(tmp_path, lambda: None, fails=True))


@pytest.mark.parametrize(("half", "kind"), [pytest.param(*each, id=" ".join(each)) for each in DAMAGES])
def test_a_streams_lag_is_measured_despite_damage(tmp_path, written, half, kind):
    damage(tmp_path, written, 1, half, kind)
    planner = Planner.of(ReadOptions.of(Given({"store": f"file:{tmp_path}", "subscribe": "t"})))
    (lag,) = measure(planner.catalog, {("t", 0): FIRST + 3}).values()
    assert (lag.offset, lag.end_offset) == (FIRST + 3, END)
    whole = sum(len(each.kfs) for each in written)
    assert whole // 3 < lag.bytes_behind < whole


@pytest.mark.parametrize(("half", "kind"), [("kfs", "half"), ("kfs", "garbage"), ("kfs", "missing"), ("index", "half"),
                                            ("index", "garbage"), ("index", "missing")])  # fmt: skip
def test_readers_handle_damage_to_version_1_segments(tmp_path, caplog, half, kind):
    made = segments(1)
    for each in made:
        each.write_to(tmp_path)
    damage(tmp_path, made, 1, half, kind)
    found = batch(Job(tmp_path, lambda: None, fails=False))
    assert found == good(1, half, kind)
    if half == "kfs":
        assert "data loss" in caplog.text
