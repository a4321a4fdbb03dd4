"""What is put aside in a worker, so that the next call of it begins at once."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

PROGRAM = """
import gc, importlib, sys, zipimport
import pyspark, other
from kafscale.spark.workers import ease_next_call

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


def run(tmp_path: Path, **environ: str) -> str:
    """With a pyspark in a zip file, as Spark's workers have it, and another module in another one."""
    for name, files in {"pyspark": ["pyspark/__init__.py", "pyspark/later.py"], "other": ["other.py"]}.items():
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            for file in files:
                archive.writestr(file, "")
    path = os.pathsep.join([str(tmp_path / "pyspark.zip"), str(tmp_path / "other.zip"), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_worker_does_not_read_sparks_zip_files_again_and_does_not_collect_what_stays(tmp_path):
    found = run(tmp_path, SPARK_REUSE_WORKER="1")
    assert found == "['other.zip', 'pyspark.zip'] ['other.zip'] 0 True True pyspark.later"


def test_no_other_process_is_touched(tmp_path):
    zips = "['other.zip', 'pyspark.zip']"
    assert run(tmp_path) == f"{zips} {zips} 0 False False pyspark.later"
