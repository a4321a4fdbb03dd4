"""A pipeline on a standalone cluster of two workers whose executors are killed in the midst of micro-batches."""

import json
import os
import random
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from kafscale.spark.bucket.position import TOPIC_IDS
from tests.devtools.external.spark import REPOSITORY, SETTINGS, spark_cluster, store_of
from tests.spark.pipeline.pipeline_driver import MAPPINGS, Expected, PipelineDriver, batches_in

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
    pytest.mark.usefixtures("iceberg"),
]

KILL_COUNT = 6
SEED = int(os.environ.get("FAULTS_SEED", "1"))
LONGEST_SECONDS = 1.5  # from the plan of a batch to the kill
EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
SETTINGS_OF_CLUSTER = {
    **{name: value for name, value in SETTINGS.items() if name.startswith("spark.driver.")},
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
    "spark.sql.shuffle.partitions": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}


def executors(cluster: Path) -> list[int]:
    """Those of the workers that have their directories there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if EXECUTOR in (entry / "cmdline").read_bytes() and (entry / "cwd").readlink().is_relative_to(cluster):
                    found.append(int(entry.name))
    return found


def batches(checkpoints: Path, folder: str) -> set[tuple[str, int]]:
    """Of both mappings, planned (`offsets`) or done (`commits`)."""
    return {(path.parts[-3], int(path.name)) for path in batches_in(checkpoints, folder)}


def ends(checkpoints: Path, mapping: str) -> dict[str, int]:
    """Where the last batch ends that is done."""
    done = [number for name, number in batches(checkpoints, "commits") if name == mapping]
    offsets = checkpoints / mapping / "offsets" / str(max(done, default=-1))
    if not offsets.exists():
        return {}
    found: dict[str, dict[str, int]] = json.loads(offsets.read_text().splitlines()[-1])
    (of_topic,) = (each for name, each in found.items() if name != TOPIC_IDS)
    return of_topic


def test_each_record_is_in_the_tables_once_though_executors_are_killed_in_batches(
    warehouse, broker, topic, produce, tmp_path, request
):
    dice, expected, kill_count = random.Random(SEED), Expected(), 0
    checkpoints, mappings, cluster = tmp_path / "checkpoints", MAPPINGS.replace("TOPIC", topic), tmp_path / "cluster"
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(
        f'source: {{store: "{store_of(broker)}"}}\n'
        f'catalog: {{type: hadoop, warehouse: "{warehouse}"}}\n'
        f'checkpoints: "{checkpoints}"\ntrigger: 100ms\nmappings:{mappings}'
    )
    with spark_cluster(cluster) as master:
        options = [f"--master={master}", *(f"--conf={name}={value}" for name, value in SETTINGS_OF_CLUSTER.items())]
        driver = PipelineDriver(tmp_path / "driver.log", options)
        driver.start(pipeline)
        try:
            while kill_count < KILL_COUNT:
                planned = batches(checkpoints, "offsets")
                produce(topic, expected.chunk(dice))
                driver.await_(partial(is_beyond, checkpoints, planned))
                time.sleep(dice.random() * LONGEST_SECONDS)
                victims = executors(cluster)
                if victims and batches(checkpoints, "offsets") - batches(checkpoints, "commits"):
                    os.kill(dice.choice(victims), signal.SIGKILL)
                    kill_count += 1
            everything = {str(partition): end for partition, end in enumerate(expected.ends)}
            driver.await_(lambda: all(ends(checkpoints, name) == everything for name in ("appended", "upserted")))
        finally:
            driver.end()
    request.getfixturevalue("lake").check(topic, expected)


def is_beyond(checkpoints: Path, planned: set[tuple[str, int]]) -> bool:
    """Whether a batch is planned that was not."""
    return not batches(checkpoints, "offsets") <= planned
