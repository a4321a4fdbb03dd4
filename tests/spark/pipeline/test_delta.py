"""Pipelines whose tables are Delta Lake's: what the tests of Iceberg's show, in short, and what is Delta's alone."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from kafscale.errors import KafScaleError
from kafscale.spark.catalogs import CatalogOptions
from kafscale.spark.pipeline.table_format import DeltaEntry, in_effect
from tests.devtools.external.spark import environ_of
from tests.spark.pipeline.conftest import JAVA_OPTIONS, QUICK_JAVA, Lake
from tests.spark.pipeline.pipeline_driver import (
    LOCAL_OPTIONS,
    MAPPINGS,
    Expected,
    PipelineDriver,
    batches_in,
    pipeline_command,
)
from tests.spark.pipeline.test_fan_out import event, proofs
from tests.spark.pipeline.test_fan_out import mapping as fanned_out

KILL_COUNT = int(os.environ.get("FAULTS_KILLS", "6"))
SEED = int(os.environ.get("FAULTS_SEED", "1"))
SMALL_LOGS = ["--conf=spark.databricks.delta.snapshotPartitions=2"]
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    JAVA_OPTIONS: QUICK_JAVA,
}
UPSERT = "mode: upsert, key: {format: string, column: id}"
of_spark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]


def entry(number: int, operation: str = "WRITE", **more: Any) -> DeltaEntry:
    return DeltaEntry(id=number, timestamp_ms=number * 10, operation=operation, **more)


def test_rows_undone_by_a_restore_are_not_in_the_table():
    entries = [
        entry(9),
        entry(8, "RESTORE", restored_ms=65),
        entry(7),
        entry(6),
        entry(5, "RESTORE", restored_id=2),
        entry(4),
        entry(3, "RESTORE", restored_id=1),
        entry(2),
        entry(1),
    ]
    assert [each.id for each in in_effect(iter(entries))] == [9, 8, 6, 5, 2, 1]


@pytest.mark.parametrize(
    ("operation", "told", "is_batch"),
    [
        ("WRITE", '{"kafscale.mapping":"m"}', True),
        ("MERGE", '{"kafscale.mapping":"m"}', True),
        ("ADD COLUMNS", '{"kafscale.mapping":"m"}', False),  # in the session of a batch, before its rows
        ("WRITE", None, False),
        ("WRITE", "a user's own words", False),
        ("WRITE", '["a list"]', False),
        ("WRITE", '{"another":"program"}', False),
    ],
)
def test_only_delta_entries_that_write_a_batchs_rows_are_its_commits(operation, told, is_batch):
    assert bool(entry(1, operation, told=told, added_bytes=7).summary()) is is_batch


@pytest.fixture(scope="module")
def spark(iceberg) -> Iterator[Any]:
    from kafscale.spark.session import SessionOptions, start_session
    from tests.devtools.external.spark import end_jvm

    end_jvm()
    catalog = CatalogOptions(type="delta", warehouse="/wherever a mapping says")
    session = start_session(SessionOptions(master="local[2]", catalogs=[catalog], conf=SETTINGS))
    yield session
    session.stop()
    end_jvm()


@pytest.fixture
def delta(lake) -> Lake:
    return attrs.evolve(lake, catalog="delta")


def forget_last_batch(lake: Lake, mapping: str) -> None:
    """As if the driver had died between the commit of the table and that of the checkpoint."""
    commits = lake.checkpoints / mapping / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


class TestTables:
    pytestmark = of_spark

    def test_a_fan_out_puts_each_row_into_one_table_once_though_the_driver_ends_between_two(
        self, delta, topic, produce, monkeypatch
    ):
        from kafscale.spark.pipeline import batch

        made = fanned_out(topic, f"tables: {{old: db.{topic}_declared, b: db.{topic}_of_b}}")
        produce(topic, [(n % 2, None, event(["old", "b", None][n % 3], n)) for n in range(6)])
        delta.run(made)
        produce(topic, [(n % 2, None, event(["old", "b", "c"][n % 3], n)) for n in range(6, 12)])
        commit = batch._Attempt._commit

        def ends(attempt: Any, rows: Any, of: Any, head: Any) -> None:
            if of.table == f"db.{topic}":
                raise KafScaleError("the driver ended")
            commit(attempt, rows, of, head)

        monkeypatch.setattr(batch._Attempt, "_commit", ends)
        assert delta.run(made, may_fail=True).failures
        monkeypatch.setattr(batch._Attempt, "_commit", commit)
        shutil.rmtree(delta.checkpoints)
        delta.run(made.replace("fan_out:", "max_records: 4, fan_out:"))
        wanted = {f"db.{topic}": [2, 5, 8, 11], f"db.{topic}_declared": [0, 3, 6, 9], f"db.{topic}_of_b": [1, 4, 7, 10]}
        for table, numbers in wanted.items():
            assert sorted(delta.rows(table, "n")) == [(n,) for n in numbers]
        assert proofs(delta, made) == dict.fromkeys(wanted, ("proven", 4))

    def test_tombstones_of_a_fan_out_delete_from_all_tables(self, delta, topic, produce):
        tables = f"tables: {{a: db.{topic}_a, b: db.{topic}_b}}, others: dead_letter"
        made = fanned_out(topic, tables, f", {UPSERT}")
        produce(topic, [(0, b"k%d" % n, event("ab"[n % 2], n)) for n in range(4)])
        delta.run(made)
        produce(topic, [(0, b"k0", None), (0, b"k1", None), (0, b"k2", event("a", 22))])
        delta.run(made)
        assert delta.rows(f"db.{topic}_a", "id, n") == [("k2", 22)]
        assert delta.rows(f"db.{topic}_b", "id, n") == [("k3", 3)]
        assert {found for found, _ in proofs(delta, made).values()} == {"proven"}

    def test_rows_are_appended_once_though_the_checkpoint_lags_or_is_lost(self, delta, topic, produce):
        mapping = f"- {{topic: {topic}, table: db.{topic}, max_records: 4, metadata: [partition, offset]}}"
        produce(topic, [(number % 2, b"k", b"%d" % number) for number in range(10)])
        seen = delta.run(mapping)
        assert sum(outcome.added_bytes > 0 for _, outcome, _, _ in seen.outcomes) == 3
        before = delta.summaries(f"db.{topic}")
        assert [int(each["kafscale.batch-id"]) for each in before if each] == [0, 1, 2]
        forget_last_batch(delta, f"db.{topic}")
        seen = delta.run(mapping)
        assert [outcome.commit_seconds for _, outcome, _, _ in seen.outcomes] == [None]
        assert delta.summaries(f"db.{topic}") == before
        shutil.rmtree(delta.checkpoints)
        produce(topic, [(0, b"k", b"10")])
        delta.run(mapping)
        rows = [(number % 2, number // 2, b"%d" % number) for number in range(11)]
        assert delta.rows(f"db.{topic}", "partition, offset, value") == sorted(rows, key=repr)

    def test_the_last_record_of_a_key_wins_and_a_batch_that_changes_nothing_is_one(self, delta, topic, produce):
        value = "value: {format: json, columns: [{name: n, type: int}]}"
        mapping = f"- {{topic: {topic}, table: db.{topic}, {UPSERT}, {value}, metadata: [offset]}}"
        for records in (
            [(0, b"a", b'{"n":1}'), (0, b"b", b'{"n":1}'), (0, b"a", b'{"n":2}')],
            [(0, b"a", None), (0, b"c", b'{"n":3}'), (0, b"b", None), (0, b"b", b'{"n":4}')],
            [(0, b"never there", None)],
        ):
            produce(topic, records)
            delta.run(mapping)
        assert delta.rows(f"db.{topic}", "id, n, offset") == [("b", 4, 6), ("c", 3, 4)]
        found = [int(each["kafscale.batch-id"]) for each in delta.summaries(f"db.{topic}") if each]
        assert found == [0, 1, 2]
        forget_last_batch(delta, f"db.{topic}")
        delta.run(mapping)
        assert len([each for each in delta.summaries(f"db.{topic}") if each]) == 3

    def test_dead_letters_of_a_batch_that_is_tried_again_are_once_there(self, delta, topic, produce, monkeypatch):
        """What is bad by then, too: a second commit of the batch to the table of dead letters is not passed over."""
        from kafscale.spark.pipeline import batch

        mapping = f"- {{topic: {topic}, table: db.{topic}, dead_letters: db.{topic}_dead, metadata: [offset], VALUE}}"
        text = mapping.replace("VALUE", "value: {format: string}")
        numbers = mapping.replace("VALUE", "value: {format: json, columns: [{name: n, type: int, required: true}]}")
        produce(topic, [(0, None, b'{"n":1}'), (0, None, b"\xff"), (0, None, b"good text")])
        with monkeypatch.context() as patched:
            patched.setattr(batch._Attempt, "_commit", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                delta.run(text)
        assert delta.rows(f"db.{topic}_dead", "offset") == [(1,)]
        delta.spark.sql(f"ALTER TABLE {delta.name(f'db.{topic}')} ADD COLUMN n INT")
        delta.run(numbers)
        assert delta.rows(f"db.{topic}_dead", "offset") == [(1,), (2,)]
        assert delta.rows(f"db.{topic}", "offset, n") == [(0, 1)]

    def test_columns_are_added_and_become_wider(self, delta, topic, produce):
        template = f"- {{topic: {topic}, table: db.{topic}, value: {{format: json, columns: COLUMNS}}}}"
        first = "[{name: n, type: int}, {name: d, type: 'decimal(5,2)'}, {name: s, type: 'struct<x: int>'}]"
        then = (
            "[{name: n, type: long}, {name: d, type: 'decimal(9,2)'}, {name: s, type: 'struct<x: bigint, y: string>'},"
            " {name: t, type: string}]"
        )
        produce(topic, [(0, None, b'{"n":1,"d":1.25,"s":{"x":1}}')])
        delta.run(template.replace("COLUMNS", first))
        produce(
            topic, [(0, None, json.dumps({"n": 2**40, "d": 12345.25, "s": {"x": 2**40, "y": "y"}, "t": "t"}).encode())]
        )
        mapping = template.replace("COLUMNS", then)
        delta.run(mapping)
        assert delta.rows(f"db.{topic}", "n, CAST(d AS STRING), s.x, s.y, t") == [
            (1, "1.25", 1, None, None),
            (2**40, "12345.25", 2**40, "y", "t"),
        ]
        assert self.proof_of(delta, mapping).is_proven

    def test_a_delta_table_is_proven_and_maintained_and_its_status_shown(self, delta, topic, produce):
        from kafscale.spark.pipeline.inspection import SparkTables, status
        from kafscale.spark.pipeline.tables import maintain

        mapping = f"- {{topic: {topic}, table: db.{topic}, max_records: 10, metadata: [partition, offset]}}"
        produce(topic, [(number % 2, b"k", b"%d" % number) for number in range(30)])
        delta.run(mapping)
        (care,) = maintain(delta.spark, delta.pipeline(mapping))
        assert care.problem is None
        assert care.compacted_files >= 3
        assert delta.summaries(f"db.{topic}")[-1] == {}
        proof = self.proof_of(delta, mapping)
        assert (proof.found, proof.snapshots, proof.rows) == ("proven", 3, 30)
        produce(topic, [(0, b"k", b"30")])
        (told,) = status(SparkTables(delta.spark, delta.pipeline(mapping)), delta.pipeline(mapping))
        assert (told.batch_id, told.lag, told.offsets) == (2, 1, {topic: {"0": 15, "1": 15}})
        delta.run(mapping)
        assert len(delta.rows(f"db.{topic}")) == 31
        delta.spark.sql(f"UPDATE {delta.name(f'db.{topic}')} SET offset = 99 WHERE offset = 3")
        assert self.proof_of(delta, mapping).missing == 2

    def test_a_restored_table_fails_until_the_checkpoint_is_deleted(self, delta, topic, produce):
        mapping = f"- {{topic: {topic}, table: db.{topic}, metadata: [offset]}}"
        for _ in range(3):
            produce(topic, [(0, None, b"v")])
            delta.run(mapping)
        delta.spark.sql(f"RESTORE {delta.name(f'db.{topic}')} TO VERSION AS OF 2")
        produce(topic, [(0, None, b"v")])
        seen = delta.run(mapping, may_fail=True)
        assert "rolled back? Delete this checkpoint" in str(seen.failures[f"db.{topic}"])
        shutil.rmtree(delta.checkpoints)
        delta.run(mapping)
        assert delta.rows(f"db.{topic}", "offset") == [(0,), (1,), (2,), (3,)]

    def test_a_trimmed_delta_log_fails_the_mapping_instead_of_restarting(self, delta, topic, produce):
        mapping = f"- {{topic: {topic}, table: db.{topic}, metadata: [offset]}}"
        produce(topic, [(0, None, b"v")])
        delta.run(mapping)
        for _ in range(10):  # then there is a checkpoint of the log, and entries before it may go
            delta.spark.sql(f"ALTER TABLE {delta.name(f'db.{topic}')} SET TBLPROPERTIES ('a' = 'b')")
        log = delta.warehouse / "db" / topic / "_delta_log"
        newest = max(log.glob("*.checkpoint.parquet")).name[:20]
        for path in [each for each in log.glob("*.json") if each.name[:20] < newest]:
            path.unlink()
            path.with_suffix(".crc").unlink(missing_ok=True)
        shutil.rmtree(delta.checkpoints)
        seen = delta.run(mapping, may_fail=True)
        assert "its log tells no more where they end" in str(seen.failures[f"db.{topic}"])
        assert isinstance(seen.failures[f"db.{topic}"], KafScaleError)
        delta.run(mapping.replace("metadata", "name: another, metadata"))
        assert len(delta.rows(f"db.{topic}")) == 2

    @pytest.mark.parametrize(
        ("more", "told"), [("partition_by: [days(at)]", "takes columns"), ("sort_by: [at]", "has no sort order")]
    )
    def test_features_that_delta_lacks_are_refused(self, delta, topic, produce, more, told):
        produce(topic, [(0, None, b"v")])
        mapping = f"- {{topic: {topic}, table: db.{topic}, metadata: {{at: timestamp}}, {more}}}"
        assert told in str(delta.run(mapping, may_fail=True).failures[f"db.{topic}"])

    def test_the_json_of_maintain_has_no_vacuum_output(self, delta, topic, produce, tmp_path):
        mapping = f"- {{topic: {topic}, table: db.{topic}}}"
        produce(topic, [(0, None, b"v")])
        delta.run(mapping)
        pipeline = tmp_path / "pipeline.yaml"
        catalog = f'{{type: delta, warehouse: "{delta.warehouse}"}}'
        parts = (f'source: {{store: "{delta.store}"}}', f"catalog: {catalog}", f"checkpoints: {delta.checkpoints}")
        pipeline.write_text("\n".join((*parts, "mappings:", mapping)))
        command = pipeline_command("maintain", "--json", pipeline, options=[*LOCAL_OPTIONS, *SMALL_LOGS])
        done = subprocess.run(command, env=environ_of(), capture_output=True, text=True, check=True)
        assert [each["table"] for each in json.loads(done.stdout)] == [f"db.{topic}"]
        assert "Deleted 0 files" in done.stderr

    def test_each_record_is_in_the_tables_once_despite_random_kills(self, delta, topic, produce, tmp_path):
        """As in `test_kills`: when a batch was planned, or has written files; in the end the checkpoints are lost."""
        dice, expected = random.Random(SEED), Expected()
        mappings = MAPPINGS.replace("TOPIC", topic)
        pipeline = tmp_path / "pipeline.yaml"
        pipeline.write_text(
            f'source: {{store: "{delta.store}"}}\n'
            f'catalog: {{type: delta, warehouse: "{delta.warehouse}"}}\n'
            f'checkpoints: "{delta.checkpoints}"\ntrigger: 100ms\nmappings:{mappings}'
        )
        driver = PipelineDriver(tmp_path / "driver.log", options=[*LOCAL_OPTIONS, *SMALL_LOGS])
        signs = {
            "batch": lambda: batches_in(delta.checkpoints, "offsets"),
            "files": lambda: set(delta.warehouse.glob(f"db/{topic}*/*.parquet")),
        }
        try:
            for number in range(KILL_COUNT):
                moment = ("batch", "files")[number % 2]
                before = signs[moment]()
                produce(topic, expected.chunk(dice))
                if not driver.is_running:
                    driver.start(pipeline)
                driver.await_(lambda: bool(signs[moment]() - before))  # noqa: B023 - it has been asked by then
                time.sleep(dice.random() * {"batch": 4.0, "files": 0.5}[moment])
                driver.kill(dice.choice(("everything", "python", "jvm", "worker")))
        finally:
            driver.end()
        shutil.rmtree(delta.checkpoints)
        delta.run(mappings.replace("max_records: 20", "max_records: 1000"))
        delta.check(topic, expected)
        there = driver.log.read_text().count("was in the table already")
        print(f"seed {SEED}: {KILL_COUNT} kills; batches in their table but not in the checkpoint: {there}")

    @staticmethod
    def proof_of(lake: Lake, mapping: str) -> Any:
        from kafscale.spark.pipeline.proof import prove

        (proof,) = prove(lake.spark, lake.pipeline(mapping))
        return proof
