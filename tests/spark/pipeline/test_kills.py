"""The pipeline as a process, killed at random moments and started again: what is in the tables then, against what was
produced.

The moments are those after a batch was planned, those after a commit has begun to write its manifests, and those of
table care beside the queries. Killed are the whole driver with its JVM and workers (a power cut), the driver's Python
alone, the JVM alone (which is the executor too), and Python workers, whose tasks Spark tries again. Once the
checkpoints are lost.
"""

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from tests.devtools.external.spark import store_of
from tests.spark.pipeline.pipeline_driver import MAPPINGS, POLL_SECONDS, Expected, PipelineDriver, batches_in

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(7200),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
    pytest.mark.usefixtures("iceberg"),
]

KILL_COUNT = int(os.environ.get("FAULTS_KILLS", "30"))
SEED = int(os.environ.get("FAULTS_SEED", "1"))
MOMENTS = ("batch", "commit", "batch", "maintenance", "batch", "commit")  # over and over
DRIVER = ("everything", "python", "jvm")
VICTIMS = {"batch": (*DRIVER, "worker", "worker", "worker"), "commit": DRIVER, "maintenance": DRIVER}
LONGEST_SECONDS = {"batch": 4.0, "commit": 0.2, "maintenance": 2.0}  # from the sign of a moment to its kill
COMMIT_POLL_SECONDS = 0.002
CARE = "maintenance: {every: 1s, expire_after: 1ms, keep_snapshots: 20}"
TOLD_OF_CARE = (" files compacted, ", ": maintenance is left")  # of one table, in the driver's log


@attrs.define(kw_only=True)
class Signs:
    """How it is seen that the moment of a kill has come, or is near."""

    driver: PipelineDriver
    checkpoints: Path
    metadata: list[Path]  # of the tables
    dice: random.Random

    def of(self, moment: str) -> Callable[[], bool]:
        """Tell what says that the moment has come, by what is there now.

        It is asked for before the records are produced that bring the moment on: a query of small batches has
        committed them all before one could look, and then nothing would ever come.
        """
        return {"batch": self._batch, "commit": self._commit, "maintenance": self._maintenance}[moment]()

    def await_(self, moment: str, has_come: Callable[[], bool]) -> None:
        """Wait for what `of` gave, and then for up to the longest time of this moment."""
        self.driver.await_(has_come, COMMIT_POLL_SECONDS if moment == "commit" else POLL_SECONDS)
        time.sleep(self.dice.random() * LONGEST_SECONDS[moment])

    def _batch(self) -> Callable[[], bool]:
        planned = batches_in(self.checkpoints, "offsets")
        return lambda: not batches_in(self.checkpoints, "offsets") <= planned

    def _commit(self) -> Callable[[], bool]:
        """By a new manifest of one of the tables: the list of manifests and the table's metadata come then."""
        directory = self.dice.choice(self.metadata)
        before = manifests(directory)
        return lambda: not manifests(directory) <= before

    def _maintenance(self) -> Callable[[], bool]:
        """By what is told of one table, when the next one is cared for."""
        count = self._told_of_care() + self.dice.randint(1, len(self.metadata))
        return lambda: self._told_of_care() >= count

    def _told_of_care(self) -> int:
        text = self.driver.log.read_text() if self.driver.log.exists() else ""  # it has not been started yet
        return sum(map(text.count, TOLD_OF_CARE))


def manifests(directory: Path) -> set[str]:
    return {name for name in os.listdir(directory) if name.endswith(".avro")} if directory.is_dir() else set()


def test_each_record_is_in_the_tables_once_despite_random_kills(warehouse, broker, topic, produce, tmp_path, request):
    dice, expected, killed, began = random.Random(SEED), Expected(), [], time.monotonic()
    checkpoints, mappings = tmp_path / "checkpoints", MAPPINGS.replace("TOPIC", topic)
    pipelines = {more: tmp_path / f"pipeline-{index}.yaml" for index, more in enumerate(["", CARE])}
    for more, path in pipelines.items():
        path.write_text(
            f'source: {{store: "{store_of(broker)}"}}\n'
            f'catalog: {{type: hadoop, warehouse: "{warehouse}"}}\n'
            f'checkpoints: "{checkpoints}"\ntrigger: 100ms\n{more}\nmappings:{mappings}'
        )
    driver = PipelineDriver(tmp_path / "driver.log")
    tables = [topic, f"{topic}_upserted", f"{topic}_dead"]
    metadata = [warehouse / "db" / table / "metadata" for table in tables]
    signs = Signs(driver=driver, checkpoints=checkpoints, metadata=metadata, dice=dice)
    is_lost = False
    try:
        while len(killed) < KILL_COUNT:
            moment = MOMENTS[len(killed) % len(MOMENTS)]
            has_come, pipeline = signs.of(moment), pipelines[CARE if moment == "maintenance" else ""]
            produce(topic, expected.chunk(dice))
            if not driver.is_running or driver.pipeline != pipeline:
                driver.end()
                driver.start(pipeline)
            signs.await_(moment, has_come)
            victim = dice.choice(VICTIMS[moment])
            if driver.is_running and driver.kill(victim):
                killed.append((moment, victim))
            if len(killed) > KILL_COUNT // 2 and not is_lost:
                driver.end()
                shutil.rmtree(checkpoints)
                is_lost = True
    finally:
        driver.end()
    kill_seconds = time.monotonic() - began
    lake = request.getfixturevalue("lake")
    lake.checkpoints = checkpoints
    lake.run(mappings.replace("max_records: 20", "max_records: 1000"))  # what is left, in few batches
    lake.check(topic, expected)
    torn = {table: len(lists_of_no_snapshot(lake, table)) for table in tables}
    print(f"seed {SEED}: {len(killed)} kills in {kill_seconds:.0f} s, all in {time.monotonic() - began:.0f} s")
    print(
        f"{sum(expected.ends)} records, {len(expected.good)} rows, {len(expected.bad)} bad, {len(expected.rows)} keys"
    )
    print(f"killed: {dict(Counter(killed))}")
    print(
        f"commits that a kill has torn: {torn}; batches in their table but not in the checkpoint: "
        f"{driver.log.read_text().count('was in the table already')}"
    )


def lists_of_no_snapshot(lake, table: str) -> set[str]:
    """The lists of manifests that were written, and that no commit has made a snapshot of."""
    rows = lake.spark.sql(f"SELECT manifest_list FROM lake.db.{table}.snapshots").collect()
    known = {Path(row.manifest_list).name for row in rows}
    return {name for name in manifests(lake.warehouse / "db" / table / "metadata") if name.startswith("snap-")} - known
