"""One Spark with Iceberg for each module, and pipelines that run in it until nothing is left."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest

from kafscale.errors import KafScaleError
from kafscale.spark.catalogs import CatalogOptions
from kafscale.spark.pipeline.config import Pipeline
from kafscale.spark.pipeline.document import parse_pipeline
from tests.spark.pipeline.pipeline_driver import Expected

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # of a JVM that lives for seconds
NAMES = (f"topic{number}" for number in count())


@pytest.fixture
def topic(broker) -> str:
    """Of two partitions, with a name of its own."""
    from confluent_kafka.admin import AdminClient, NewTopic

    name = next(NAMES)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    return name


@pytest.fixture
def produce(broker) -> Callable[[str, Sequence[tuple[int, bytes | None, bytes | None]]], None]:
    """Records of partition, key and value, into the bucket, compressed."""
    from confluent_kafka import Producer

    from tests.devtools.external.spark import flush

    def produce(topic: str, records: Sequence[tuple[int, bytes | None, bytes | None]]) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "zstd"})
        for partition, key, value in records:
            producer.produce(topic, value, key, partition=partition)
        producer.flush()
        flush(broker)

    return produce


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="session")
def iceberg() -> None:
    """Skips what asks for it where it does not run."""
    from tests.devtools.external.spark import skip_without_iceberg

    skip_without_iceberg()


@pytest.fixture(scope="module")
def spark(iceberg, warehouse) -> Iterator[Any]:
    from kafscale.spark.session import SessionOptions, start_session
    from tests.devtools.external.spark import end_jvm

    end_jvm()
    catalog = CatalogOptions(type="hadoop", warehouse=str(warehouse), properties={"cache-enabled": "false"})
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", JAVA_OPTIONS: QUICK_JAVA}
    session = start_session(SessionOptions(master="local[2]", catalogs=[catalog], conf=conf))
    yield session
    session.stop()
    end_jvm()


@attrs.define(kw_only=True)
class Seen:
    """What an observer was told."""

    outcomes: list[Any] = attrs.field(factory=list)
    failures: dict[str, Exception] = attrs.field(factory=dict)
    restarts: list[Any] = attrs.field(factory=list)
    lags: list[Any] = attrs.field(factory=list)

    def batch_done(self, mapping: str, outcome: Any, row_count: int, lag: int) -> None:
        self.outcomes.append((mapping, outcome, row_count, lag))

    def lag_measured(self, mapping: str, lag: Any) -> None:
        self.lags.append((mapping, lag))

    def mapping_failed(self, mapping: str, error: Exception) -> None:
        if not isinstance(error, KafScaleError):
            raise error
        self.failures[mapping] = error

    def mapping_restarts(self, mapping: str, error: Exception, delay_seconds: float) -> None:
        self.restarts.append((mapping, error))

    def maintained(self, care: Any) -> None:
        raise AssertionError("no run of the tests maintains")


@attrs.define(kw_only=True)
class Lake:
    """Pipelines over one broker's bucket, and the tables they keep."""

    spark: Any
    warehouse: Path
    checkpoints: Path
    store: str
    catalog: str = "hadoop"  # its type

    def pipeline(self, mappings: str, more: str = "") -> Pipeline:
        """mappings: YAML of the list."""
        text = f"""
source: {{store: "{self.store}"}}
catalog: {{type: {self.catalog}, warehouse: "{self.warehouse}"}}
checkpoints: "{self.checkpoints}"
{more}
mappings:
{mappings}
"""
        return parse_pipeline(text, "test.yaml", {})

    def run(self, mappings: str, more: str = "", *, may_fail: bool = False) -> Seen:
        """Until nothing is left, in batches of the size that the mappings say."""
        from kafscale.spark.pipeline.runner import PipelineRun

        seen = Seen()
        PipelineRun(spark=self.spark, pipeline=self.pipeline(mappings, more), observers=[seen]).run(once=True)
        assert may_fail or not seen.failures
        return seen

    def name(self, table: str) -> str:
        """Of a table, in Spark's SQL."""
        return CatalogOptions(type=self.catalog, warehouse=str(self.warehouse)).full_name(table)

    def rows(self, table: str, columns: str = "*") -> Sequence[tuple[Any, ...]]:
        """Of a table, in one order."""
        found = self.spark.sql(f"SELECT {columns} FROM {self.name(table)}").collect()
        return sorted((tuple(row) for row in found), key=repr)

    def summaries(self, table: str) -> Sequence[dict[str, str]]:
        """Of the snapshots, oldest first; empty if they are no batch's."""
        from kafscale.spark.pipeline.tables import format_of

        pipeline = self.pipeline(f"- {{topic: t, table: {table}}}")
        return [dict(commit.summary()) for commit in format_of(self.spark, pipeline).commits(table)][::-1]

    def check(self, topic: str, expected: Expected) -> None:
        """The tables of `tests.spark.pipeline.pipeline_driver.MAPPINGS` against what was produced."""
        assert self.rows(f"db.{topic}", "partition, offset") == sorted(expected.good, key=repr)
        dead = self.rows(f"db.{topic}_dead", "mapping, partition, offset")
        assert dead == sorted(((name, *place) for name in ("appended", "upserted") for place in expected.bad), key=repr)
        assert dict(self.rows(f"db.{topic}_upserted", "id, n")) == expected.rows
        for table in (topic, f"{topic}_upserted"):
            marked = [each for each in self.summaries(f"db.{table}") if "kafscale.batch-id" in each]
            ends = {str(partition): end for partition, end in enumerate(expected.ends)}
            assert json.loads(marked[-1]["kafscale.offsets"]) == {topic: ends}
            self._check_batches(marked)

    def _check_batches(self, marked: Sequence[dict[str, str]]) -> None:
        """Each is in one snapshot, in order. Those of a query that began after the first follow from 0."""
        batches: dict[str, list[int]] = {}
        for each in marked:
            batches.setdefault(each["kafscale.query-id"], []).append(int(each["kafscale.batch-id"]))
        for index, found in enumerate(batches.values()):
            first = 0 if index else found[0]  # snapshots before it may have been expired
            assert found == list(range(first, first + len(found)))


@pytest.fixture
def lake(spark, warehouse, broker, tmp_path) -> Lake:
    from tests.devtools.external.spark import store_of

    return Lake(spark=spark, warehouse=warehouse, checkpoints=tmp_path / "checkpoints", store=store_of(broker))
