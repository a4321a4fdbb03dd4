"""The directory that a mapping keeps: Spark's checkpoint, and in it where the stream began.

Spark keeps where batches end, but on this kind of source not where the first one began; so it is kept here, as numbers,
and a first batch that is repeated reads the same. Files are read and written by Spark's Hadoop, so that any of its file
systems will do. A lock on a local directory is held by the JVM, which alone can commit, for as long as it lives.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Set
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
        """A text file's content; None if there is none."""
        path = self._path(name)
        system = self._system(path)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """All of it or nothing: written beside, then renamed."""
        draft, path = self._path(f".{name}.draft"), self._path(name)
        system = self._system(path)
        stream = system.create(draft, True)
        try:
            self._jvm.org.apache.commons.io.IOUtils.write(text, stream, "UTF-8")
        finally:
            stream.close()
        system.rename(draft, path)

    def delete(self, name: str) -> None:
        """A file, or a folder with all that is in it, if it is there."""
        path = self._path(name)
        self._system(path).delete(path, True)

    def copy_to(self, other: HadoopDirectory) -> None:
        """Copy all that is in it, on whichever file systems both are."""
        source, target = self._path(""), other._path("")
        conf = self.spark._jsc.hadoopConfiguration()
        file_util = self._jvm.org.apache.hadoop.fs.FileUtil
        file_util.copy(self._system(source), source, other._system(target), target, False, conf)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder of it; none if there is no such folder."""
        path = self._path(folder)
        system = self._system(path)
        if not system.exists(path):
            return []
        return [each.getPath().getName() for each in system.listStatus(path)]

    def lock(self, name: str) -> Any:
        """Return what holds the lock until it is closed, or the JVM ends; None if another process has it."""
        path = self._path(name)
        system = self._system(path)
        if system.getUri().getScheme() != "file":
            return NoLock()
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


class NoLock:
    """The lock of a file system that is not this machine's, where nothing keeps a second run out."""

    def close(self) -> None:
        """Do nothing: no lock is held."""


@attrs.frozen(kw_only=True)
class Progress:
    """The last batch that was planned, where it ends, and the last that Spark knows to be done."""

    planned_batch: int | None
    committed_batch: int | None
    end: Position


@attrs.frozen(eq=False, repr=False)
class Checkpoint:
    """The checkpoint of one mapping."""

    directory: HadoopDirectory

    @property
    def query_id(self) -> str | None:
        """Spark's id of the query, the same as long as the checkpoint is there; None before the first start."""
        text = self.directory.read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def end(self, batch_id: int) -> Position:
        """Return where a batch ends, which Spark writes down before the batch begins."""
        text = self.directory.read(f"offsets/{batch_id}")
        if text is None:
            raise StartupError(f"the checkpoint {self.directory.path} has no offsets of batch {batch_id}")
        return Position.parse(text.splitlines()[-1])

    def start_of(self, batch_id: int) -> Position:
        """Return where a batch begins: where the one before it ends, or the stream began. Empty if neither is there."""
        text = self.directory.read(f"offsets/{batch_id - 1}") if batch_id else None
        if text is not None:
            return Position.parse(text.splitlines()[-1])
        return (None if batch_id else self.begun()) or Position()

    def progress(self) -> Progress:
        """Return how far the query has come."""
        planned, committed = (
            max((int(name) for name in self.directory.names(folder) if name.isdecimal()), default=None)
            for folder in ("offsets", "commits")
        )
        return Progress(
            planned_batch=planned,
            committed_batch=committed,
            end=Position() if planned is None else self.end(planned),
        )

    def begun(self) -> Position | None:
        """Return where the stream began; None if it has not."""
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
        """Return where the stream began; found, and written down, the first time."""
        known = self.begun()
        if known is None:
            known = find()
            self.directory.write(START, json.dumps(known.to_json()))
        return known

    def begin_anew(self, start: Position, again: Collection[str] = ()) -> None:
        """Let the next query begin here. Where this ends halfway, the next start fails, or is that of before.

        again: the topics that it reads again, whatever tables have of them.
        """
        topics = start.to_json()
        if again:
            topics[AGAIN] = dict.fromkeys(sorted(again), True)
        self.directory.delete(START)
        self.directory.write(START, json.dumps(topics))
        for name in SPARKS:
            self.directory.delete(name)


def take_lock(directory: HadoopDirectory) -> Any:
    """Keep other runs of the pipeline out until this JVM ends. Raises StartupError if another one is at work."""
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while (lock := directory.lock(LOCK)) is None:
        if time.monotonic() > deadline:
            raise StartupError(f"another run of the pipeline works on {directory.path}: end it, then start again")
        time.sleep(0.2)
    return lock
