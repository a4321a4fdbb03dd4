"""The directory that a mapping keeps: Spark's checkpoint, and the beginning of the stream.

Spark keeps the ends of batches, but for this kind of source not the beginning of the first one; it is kept here, so
that a repeated first batch reads the same. Spark's Hadoop reads and writes the files, on any of its file systems. The
JVM, which alone can commit, holds the lock on a local directory for as long as it lives.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Set
from contextlib import ExitStack, closing
from typing import Any

import attrs

from kafscale.errors import StartupError
from kafscale.spark.bucket.position import Position

START = "kafscale-start.json"
AGAIN = "@again"  # among the topics of that file, as no topic is called: those that a reset has be read again
LOCK = "kafscale.lock"
LOCK_WAIT_SECONDS = 30.0  # for the JVM of a driver that was killed to notice it
SPARKS = ("metadata", "offsets", "commits", "sources", "state")  # what a query has in its checkpoint, its id first


@attrs.frozen(eq=False, repr=False)
class HadoopDirectory:
    """A directory on any file system that Spark's Hadoop knows."""

    spark: Any  # a SparkSession, whose inner parts have no types
    path: str

    def read(self, name: str) -> str | None:
        path = self._path(name)
        system = self._system(path)
        if not system.exists(path):
            return None
        with closing(system.open(path)) as stream:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        return text

    def write(self, name: str, text: str) -> None:
        """Write a file atomically."""
        draft, path = self._path(f".{name}.draft"), self._path(name)
        system = self._system(path)
        with closing(system.create(draft, True)) as stream:
            self._jvm.org.apache.commons.io.IOUtils.write(text, stream, "UTF-8")
        system.rename(draft, path)

    def delete(self, name: str) -> None:
        path = self._path(name)
        self._system(path).delete(path, True)

    def copy_to(self, other: HadoopDirectory) -> None:
        """Copy the whole directory, on any two file systems."""
        source, target = self._path(""), other._path("")
        conf = self.spark._jsc.hadoopConfiguration()
        file_util = self._jvm.org.apache.hadoop.fs.FileUtil
        file_util.copy(self._system(source), source, other._system(target), target, False, conf)

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        system = self._system(path)
        if not system.exists(path):
            return []
        return [status.getPath().getName() for status in system.listStatus(path)]

    def lock(self, name: str) -> Any:
        """Return the lock, held until it is closed or the JVM ends; None if another process has it."""
        path = self._path(name)
        system = self._system(path)
        if system.getUri().getScheme() != "file":
            return ExitStack()  # nothing keeps a second run out
        system.mkdirs(path.getParent())
        local = system.makeQualified(path).toUri().getPath()
        return self._jvm.java.io.RandomAccessFile(local, "rw").getChannel().tryLock()

    @property
    def _jvm(self) -> Any:
        return self.spark._jvm

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.path.rstrip('/')}/{name}")

    def _system(self, path: Any) -> Any:
        return path.getFileSystem(self.spark._jsc.hadoopConfiguration())


@attrs.frozen(kw_only=True)
class QueryProgress:
    planned_batch: int | None
    committed_batch: int | None
    end: Position


@attrs.frozen(eq=False, repr=False)
class QueryCheckpoint:
    directory: HadoopDirectory

    @property
    def query_id(self) -> str | None:
        """Return Spark's id of the query, constant for a checkpoint; None before the first start."""
        text = self.directory.read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def end(self, batch_id: int) -> Position:
        """Return the end of a batch, which Spark records before the batch begins."""
        text = self.directory.read(f"offsets/{batch_id}")
        if text is None:
            raise StartupError(f"the checkpoint {self.directory.path} has no offsets of batch {batch_id}")
        return Position.parse(text.splitlines()[-1])

    def start_of(self, batch_id: int) -> Position:
        """Return the beginning of a batch: the end of the one before, or of the stream; else empty."""
        text = self.directory.read(f"offsets/{batch_id - 1}") if batch_id else None
        if text is not None:
            return Position.parse(text.splitlines()[-1])
        return (None if batch_id else self.begun()) or Position()

    def progress(self) -> QueryProgress:
        planned, committed = (
            max((int(name) for name in self.directory.names(folder) if name.isdecimal()), default=None)
            for folder in ("offsets", "commits")
        )
        return QueryProgress(
            planned_batch=planned, committed_batch=committed, end=Position() if planned is None else self.end(planned)
        )

    def begun(self) -> Position | None:
        text = self.directory.read(START)
        if text is None:
            return None
        topics = json.loads(text)
        topics.pop(AGAIN, None)
        return Position.from_json(topics)

    def read_again(self) -> Set[str]:
        """Return the topics that the query reads again, though tables have them by an earlier query."""
        text = self.directory.read(START)
        return frozenset() if text is None else frozenset(json.loads(text).get(AGAIN, ()))

    def start(self, find: Callable[[], Position]) -> Position:
        """Return the beginning of the stream, found and recorded the first time."""
        known = self.begun()
        if known is None:
            known = find()
            self.directory.write(START, json.dumps(known.to_json()))
        return known

    def begin_anew(self, start: Position, again: Collection[str] = ()) -> None:
        """Let the next query begin here, and read topics in `again` even if tables have them.

        If this fails halfway, the next start fails, or is the former one.
        """
        topics = start.to_json()
        if again:
            topics[AGAIN] = dict.fromkeys(sorted(again), True)
        self.directory.delete(START)
        self.directory.write(START, json.dumps(topics))
        for name in SPARKS:
            self.directory.delete(name)


def take_lock(directory: HadoopDirectory) -> Any:
    """Keep other runs of the pipeline out until this JVM ends. Raises StartupError if another one runs."""
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while (lock := directory.lock(LOCK)) is None:
        if time.monotonic() > deadline:
            raise StartupError(f"another run of the pipeline works on {directory.path}: end it, then start again")
        time.sleep(0.2)
    return lock
