"""What is put aside in a worker, so that the next call of it begins at once."""

import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.devtools.external.spark import environ_of

PROGRAM = """
import gc, importlib, sys, zipimport
import pyspark, other
from kafscale.spark.workers.calls import ease_next_call

def zips():
    return sorted(
        {finder.archive.rpartition("/")[2] for finder in sys.path_importer_cache.values()
         if isinstance(finder, zipimport.zipimporter)}
    )

before, frozen_before = zips(), gc.get_freeze_count()
ease_next_call()
after, frozen = zips(), gc.get_freeze_count()
ease_next_call()
importlib.invalidate_caches()
import pyspark.later
print(before, after, frozen_before, frozen > 0, 0 < gc.get_freeze_count() <= frozen, pyspark.later.__name__)
"""


ARCHIVES = ["other.zip", "pyspark.zip", "spark-core_2.13-4.1.4.jar"]


def run(tmp_path: Path, **environ: str) -> str:
    """With pyspark in a zip file and a jar, as Spark's workers have them, and another module in another zip file."""
    archives = {
        "pyspark.zip": ["pyspark/__init__.py", "pyspark/later.py"],
        "spark-core_2.13-4.1.4.jar": ["org/apache/spark/SparkContext.class"],
        "other.zip": ["other.py"],
    }
    for name, files in archives.items():
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for file in files:
                archive.writestr(file, "")
    path = os.pathsep.join([*(str(tmp_path / name) for name in archives), str(Path(__file__).parents[3])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_reused_worker_drops_sparks_zip_importers_and_freezes_its_objects(tmp_path):
    found = run(tmp_path, SPARK_REUSE_WORKER="1")
    assert found == f"{ARCHIVES} ['other.zip'] 0 True True pyspark.later"


def test_no_other_process_is_touched(tmp_path):
    assert run(tmp_path) == f"{ARCHIVES} {ARCHIVES} 0 False False pyspark.later"


FAULTS_PROGRAM = """
import resource
from kafscale.spark.workers.calls import ease_next_call

def faults_of(call):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

ease_next_call()
bytearray(16 << 20)
print(faults_of(lambda: bytearray(16 << 20)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told")
def test_a_worker_reuses_the_memory_of_gets():
    environ = environ_of(SPARK_REUSE_WORKER="1")
    program = [sys.executable, "-c", FAULTS_PROGRAM]
    found = subprocess.run(program, env=environ, capture_output=True, text=True, check=True).stdout
    assert int(found) < 1000  # 4,096 pages


IDLE_PROGRAM = """
import socket, sys, types
from kafscale.spark.workers.calls import ease_next_call

main = types.ModuleType("worker_of_spark")
main.handle_worker_exception = lambda exc, outfile, *options: print("told", exc, *options)
sys.modules["worker_of_spark"] = main
sys.argv = ["daemon.py", "worker_of_spark"]
ease_next_call()
ours, sparks = socket.socketpair()
outfile = ours.makefile("wb")
main.handle_worker_exception(ValueError("of a task"), outfile, True)
sparks.close()
main.handle_worker_exception(EOFError(), outfile)
print("not reached")
"""


def test_a_worker_that_spark_has_left_ends_without_a_word():
    """Spark closes the socket of an idle worker, which told of a broken pipe on the user's terminal."""
    environ = environ_of(SPARK_REUSE_WORKER="1", PYTHONUNBUFFERED="1")
    program = [sys.executable, "-c", IDLE_PROGRAM]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("told of a task True\n", "")


@pytest.mark.spark  # it needs pyspark, and starts none
def test_a_worker_that_had_nothing_to_read_ended_with_a_traceback_in_an_idle_shell(tmp_path, monkeypatch):
    """Where nothing is to be read Spark asks for the records of no partition, and ends the worker a minute later."""
    from kafscale.spark.source import source
    from kafscale.spark.source.options import BatchOptions, Given, ReadOptions

    calls: list[str] = []
    monkeypatch.setattr(source, "ease_next_call", lambda: calls.append("eased"))
    given = Given({"store": f"file:{tmp_path}", "subscribe": "t"})
    reader = source.BatchReader(options=ReadOptions.of(given), limits=BatchOptions.of(given), columns=["value"])
    assert list(reader.read(None)) == []
    assert calls == ["eased"]
