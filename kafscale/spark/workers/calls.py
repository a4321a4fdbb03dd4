"""Keeps the cost of each call of Spark's Python workers small (decision 0024).

Before each task Spark drops Python's caches of directories, and so reads the lists of files of pyspark's zip file and
of its jar anew; after each task it collects garbage, and so visits each object of all modules. Both take longer than
planning a query and find nothing.

Spark closes the socket of a worker that was idle for a minute. The worker reports that to Spark, and through a Unix
domain socket fails at once, with a traceback of BrokenPipeError on the user's terminal.

GETs return blocks of one size each time, and glibc would give them back and ask for them anew, page by page: 6.6 ms of
CPU in place of 3.3 for 16 MiB of a file in the page cache.
"""

from __future__ import annotations

import gc
import os
import select
import sys
import zipimport
from functools import cache
from typing import IO, Any

from kafscale.malloc import keep_freed_memory

WORKER_VARIABLE = "SPARK_REUSE_WORKER"  # set by Spark in workers that run more than one task
SPARKS_OWN = ("pyspark", "py4j")
SPARKS_JAR = "spark-core_"

KEPT_FREED_BYTES, KEPT_BLOCK_MAX_BYTES = 64 << 20, 32 << 20


def ease_next_call() -> None:
    """Let the next call begin at once. Does nothing outside of Spark's workers.

    Finders of Spark's own zip files are dropped; a later import makes them again, from `zipimport`'s memory of these
    files. Objects alive at the first call are left out of later collections.
    """
    if WORKER_VARIABLE not in os.environ:
        return
    archives = {_archive_of(name) for name in SPARKS_OWN}
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter) and (
            finder.archive in archives or os.path.basename(finder.archive).startswith(SPARKS_JAR)
        ):
            del sys.path_importer_cache[path]
    _prepare()


@cache
def _prepare() -> None:
    gc.freeze()
    keep_freed_memory(kept_bytes=KEPT_FREED_BYTES, block_max_bytes=KEPT_BLOCK_MAX_BYTES)
    _end_quietly_without_spark()


def _end_quietly_without_spark() -> None:
    main: Any = sys.modules.get(sys.argv[-1])
    tell = getattr(main, "handle_worker_exception", None)
    if tell is None:
        return

    def tell_or_end(exc: BaseException, outfile: IO[bytes], *options: Any) -> None:
        connection = select.poll()
        connection.register(outfile.fileno(), 0)
        if connection.poll(0):  # it has hung up
            os._exit(0)
        tell(exc, outfile, *options)

    main.handle_worker_exception = tell_or_end


def _archive_of(name: str) -> str | None:
    loader = getattr(sys.modules.get(name), "__loader__", None)
    return loader.archive if isinstance(loader, zipimport.zipimporter) else None
