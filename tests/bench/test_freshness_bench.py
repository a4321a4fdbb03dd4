"""The tables and the page of `make bench-freshness`, without Spark."""

import json

from bench.spark.freshness_page import Found, Read, Streamed, reads_table, streams_table, write_page

OPTIONS = {"spark": "4.1.4", "seconds": 60.0, "per_second": 500, "partitions": 3, "warm_seconds": 15.0}


def streamed(durability: str, freshness: str, p99_seconds: float) -> Streamed:
    return Streamed(
        bucket="directory",
        durability=durability,
        freshness=freshness,
        per_second=500,
        records_count=30_000,
        p50_seconds=0.8,
        p90_seconds=1.2,
        p99_seconds=p99_seconds,
        most_seconds=2.5,
        phases_ms={"triggerExecution": 412.0, "latestOffset": 31.0, "queryPlanning": 5.0, "addBatch": 201.5},
    )


def read(freshness: str, per_second: int, *seconds: float) -> Read:
    return Read(
        bucket="directory",
        per_second=per_second,
        log_objects_count=1400 if per_second else 0,
        freshness=freshness,
        rows_count=200_000,
        seconds=seconds,
    )


FOUND = Found(
    streamed=[streamed("s3-wal", "bucket", 1.49), streamed("s3-wal", "bucket", 1.51), streamed("wal", "broker", 1.9)],
    reads=[
        read("segments", 0, 1.0, 1.2, 1.1),
        read("bucket", 0, 1.1, 1.1, 1.1),
        read("segments", 500, 1.0, 1.0, 5.0),
        read("bucket", 500, 1.4, 1.2, 1.5),
    ],
)


def test_tables_show_whether_each_target_is_reached():
    assert [row[-1] for row in streams_table(FOUND).rows] == ["yes", "**no**", "–"]
    rows = reads_table(FOUND).rows
    assert [(row[-2], row[-1]) for row in rows] == [("1.00", "–"), ("1.00", "yes"), ("1.00", "–"), ("1.40", "**no**")]


def test_page_and_json_are_written_from_the_same_findings(tmp_path):
    page = write_page(FOUND, OPTIONS, tmp_path).read_text()
    for table in (streams_table(FOUND), reads_table(FOUND)):
        assert "\n".join(table.markdown()) in page
    assert "{" not in page
    content = json.loads((tmp_path / "freshness.json").read_text())
    assert content["reads"][2]["seconds"] == [1.0, 1.0, 5.0]
    assert content["streamed"][0]["phases_ms"]["latestOffset"] == 31.0
