"""What Spark's Python workers pay for each call, and how that is kept small.

Spark runs a worker process for task after task. Before each one it has Python forget which files there are
(`importlib.invalidate_caches`), and after each one collect garbage. As Spark has pyspark in a zip file, and the jar of
its core on Python's path, too, the first reads the zip's list of files once for each package in it, and that of the
jar, some 5,000 files, twice; the second looks at each object of all modules. All that takes longer than to plan a
query, or to read a small split; and neither finds anything, since the modules of a worker stay what they are.

Spark closes the socket of a worker that had nothing to do for a minute. The worker means to tell Spark about that, and
through a Unix domain socket, where it learns at once that nobody is there, ends with a traceback of BrokenPipeError on
the user's terminal.

What a GET returns is as large each time, and glibc would give it back and ask for as much anew, page by page: of 16 MiB
of a file in the page cache, 6.6 ms of CPU in place of 3.3.
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
    _prepare()


@cache
def _prepare() -> None:
    """Once in a process: to ask `gc` how much is frozen takes 5 ms, as it counts."""
    gc.freeze()
    keep_freed_memory(kept_bytes=KEPT_FREED_BYTES, block_max_bytes=KEPT_BLOCK_MAX_BYTES)
    _end_quietly_without_spark()


def _end_quietly_without_spark() -> None:
    """Replaces the function by which the worker's main module, the daemon's argument, tells Spark of an exception."""
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
    """The zip file that a module is from."""
    loader = getattr(sys.modules.get(name), "__loader__", None)
    return loader.archive if isinstance(loader, zipimport.zipimporter) else None
