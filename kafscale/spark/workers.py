"""What Spark's Python workers pay for each call, and how that is kept small.

Spark runs a worker process for task after task. Before each one it has Python forget which files there are
(`importlib.invalidate_caches`), and after each one collect garbage. As Spark has pyspark in a zip file, and the jar of
its core on Python's path, too, the first reads the zip's list of files once for each package in it, and that of the
jar, some 5,000 files, twice; the second looks at each object of all modules. All that takes longer than to plan a
query, or to read a small split; and neither finds anything, since the modules of a worker stay what they are.

What a GET returns is as large each time, and glibc would give it back and ask for as much anew, page by page: of 16 MiB
of a file in the page cache, 6.6 ms of CPU in place of 3.3.
"""

from __future__ import annotations

import gc
import os
import sys
import zipimport
from functools import cache

from kafscale.malloc import keep_freed_memory

WORKER_VARIABLE = "SPARK_REUSE_WORKER"  # set by Spark in workers that run more than one task
SPARKS_OWN = ("pyspark", "py4j")
SPARKS_JAR = "spark-core_"

KEPT_FREED_BYTES, KEPT_BLOCK_MAX_BYTES = 64 << 20, 32 << 20


def ease_next_call() -> None:
    """Let the next call begin at once. Does nothing outside of Spark's workers.

    Finders of Spark's own zip files are forgotten; what is imported from there later makes them again, from what
    `zipimport` remembers of those files. What is alive at the first call is left out of later collections.
    """
    if WORKER_VARIABLE not in os.environ:
        return
    archives = {_archive_of(name) for name in SPARKS_OWN}
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter) and (
            finder.archive in archives or os.path.basename(finder.archive).startswith(SPARKS_JAR)
        ):
            del sys.path_importer_cache[path]
    _keep_what_there_is()


@cache
def _keep_what_there_is() -> None:
    """Once in a process: to ask `gc` how much is frozen takes 5 ms, as it counts."""
    gc.freeze()
    keep_freed_memory(kept_bytes=KEPT_FREED_BYTES, block_max_bytes=KEPT_BLOCK_MAX_BYTES)


def _archive_of(name: str) -> str | None:
    """The zip file that a module is from."""
    loader = getattr(sys.modules.get(name), "__loader__", None)
    return loader.archive if isinstance(loader, zipimport.zipimporter) else None
