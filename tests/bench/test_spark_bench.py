"""The data, the tables and the page of `make bench-spark`, without Spark."""

from collections import Counter
from types import SimpleNamespace

from bench.spark import avro, rounds
from bench.spark.costs import Costs, Planned
from bench.spark.data import DAY_MS, HOUR_MS, Shape, batches_of, rows_between
from bench.spark.decoder import Decoded
from bench.spark.page import FIGURES, save_part, saved_part, together, write_page
from bench.spark.rounds import MAX_ROUNDS, SHORT_SECONDS, Contest, Further, Result
from bench.spark.session import Used
from bench.spark.sources import BUCKET, KAFKA, ON_US, QUERIES, READY, Query
from bench.spark.tables import Outcome
from kafscale.wire.records import iterate_records
from tests.devtools.external.registry import running_values

SHAPE = Shape(value_bytes=1024, partitions=2, rows=200, first_ms=1_700_006_400_000)
OPTIONS = {"spark": "4.1.4", "rounds": 2, "seconds": 9.0, "bucket": "is a directory"}


def test_the_records_of_a_partition_are_spread_over_a_day():
    found = [record for batch in batches_of(SHAPE) for record in iterate_records(memoryview(batch))]
    times = [record.timestamp_ms - SHAPE.first_ms for record in found]
    assert len(found) * SHAPE.partitions == SHAPE.all_rows == 192
    assert {len(record.value) for record in found} == {1024}
    assert times == sorted(times)
    assert times[0] == 0
    assert DAY_MS * 0.98 < times[-1] < DAY_MS


def test_the_rows_of_an_hour_are_counted():
    found = [record for batch in batches_of(SHAPE) for record in iterate_records(memoryview(batch))]
    times = [record.timestamp_ms - SHAPE.first_ms for record in found]
    for first, behind in ((0, DAY_MS), (12 * HOUR_MS, 13 * HOUR_MS), (23 * HOUR_MS, 24 * HOUR_MS)):
        count = rows_between(SHAPE, SHAPE.first_ms + first, SHAPE.first_ms + behind)
        assert count == SHAPE.partitions * sum(first <= time < behind for time in times) > 0


def result(query: str, source: str, round: int, seconds: float) -> Result:
    return Result(
        shape=str(SHAPE),
        query=query,
        source=source,
        round=round,
        rows=SHAPE.all_rows,
        value_bytes=SHAPE.value_bytes,
        seconds=seconds,
        broker_cpu_seconds=0.5,
        jvm_cpu_seconds=2.0,
        python_cpu_seconds=1.0,
    )


def outcome() -> Outcome:
    results = [
        result(query.name, source, round, seconds + round)
        for query in QUERIES
        for source, seconds in ((BUCKET, 1.0), (KAFKA, 2.5), (ON_US, 1.5), (READY, 0.75))
        for round in range(3)
    ]
    costs = Costs(shape=str(SHAPE), rows=192, plan_seconds=0.01, get_seconds=0.1, decode_seconds=0.2)
    return Outcome(
        results=results,
        planned=[
            Planned(shape=str(SHAPE), query="where", read_bytes=5 << 20, needed_bytes=4 << 20, all_bytes=96 << 20)
        ],
        costs=[costs],
        further=[
            Further(what="a stream", source=source, seconds=[seconds])
            for source, seconds in ((BUCKET, 0.5), (KAFKA, 0.7), (ON_US, 0.6), (READY, 0.4))
        ],
    )


def test_the_page_has_medians_and_all_tables(tmp_path):
    decoded = Decoded(
        codec="zstd", value_bytes=100, batch_bytes=16 << 10, records_per_second=3.1e6, mib_per_second=295.7
    )
    page = write_page(together([outcome(), Outcome(decoded=[decoded])]), OPTIONS, tmp_path).read_text()
    page += (tmp_path / FIGURES).read_text()
    assert (
        "| 1 KiB, 2 partitions | count | 96 | 0.1 | 100% | 55 | 0.1 | 57% | 1.75 | 2.50 | 2.00 | 0.50 | 0.50 | 77 |"
        in page
    )
    assert "| 1 KiB, 2 partitions | group by key | 1.75 | 2 | 2.00 |" in page
    assert "| a stream | 0.50 | 0.70 | 0.60 | 1.40 | 1.75 |" in page
    assert "|  | a stream | 1.40 | 2 | 1.75 |" in page
    assert "| 1 KiB, 2 partitions | the last hour by where | 5.0 | 4.0 | 96.0 |" in page
    assert "| 1 KiB, 2 partitions | 10 | 520.83 | 1041.67 |" in page
    assert "| zstd | 16 KiB | 100 B | 3.10 | 296 |" in page
    assert (tmp_path / "spark.json").exists()
    assert (tmp_path / "spark.svg").read_text().count("1.75x") == len(QUERIES)


def test_a_saved_part_of_a_run_reads_back(tmp_path):
    path = tmp_path / "results" / "part.json"
    save_part(outcome(), path)
    assert list(saved_part(path).results) == outcome().results
    assert list(saved_part(path).costs) == outcome().costs


class Clock:
    """Stands still until somebody says how long something took."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_short_queries_are_repeated_until_chance_weighs_little(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(rounds, "time", clock)

    def query(name: str, seconds: float) -> Query:
        def run(frame: object) -> None:
            clock.now += seconds

        return Query(name=name, title=name, run=run)

    def source(name: str) -> SimpleNamespace:
        broker = SimpleNamespace(usage=lambda: SimpleNamespace(cpu_seconds=None))
        return SimpleNamespace(name=name, broker=broker, load=lambda *args, **kwargs: None)

    spark = SimpleNamespace(used=lambda: Used(jvm_seconds=0, python_seconds=0))
    queries = [query("long", SHORT_SECONDS), query("short", SHORT_SECONDS / 10), query("tiny", SHORT_SECONDS / 1000)]
    contest = Contest(spark=spark, sources=[source(KAFKA), source(BUCKET)], queries=queries)
    counts = Counter((each.query, each.source) for each in contest.rounds(SHAPE, 3))
    expected = {"long": 3, "short": 5, "tiny": MAX_ROUNDS}
    assert counts == {(name, source): count for name, count in expected.items() for source in (KAFKA, BUCKET)}


def test_the_values_in_avro_are_of_their_schema_behind_a_prefix():
    with running_values() as registry:
        values = [registry.avro(avro.SCHEMA, avro.order(number), topic=avro.TOPIC) for number in range(9)]
        decoded = registry.reader_of(f"{avro.TOPIC}-value").decode(values)
    assert decoded.errors == [None] * 9
    assert decoded.values.field("customer").to_pylist() == [f"customer {number}" for number in range(9)]
    assert {len(value) > avro.PREFIX_BYTES and value[0] for value in values} == {0}
