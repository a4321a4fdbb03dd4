"""What Spark raises, as errors that tell the user what to do in one line."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread

from kafscale.errors import QueryError

_OURS = re.compile(r"^kafscale\.[\w.]+: (.+)", re.MULTILINE)  # in the traceback of a worker
# Of Spark's conditions, those that have nothing to do with which columns a topic has, nor a message that lists them.
OF_NO_COLUMNS = {
    "DATATYPE_MISMATCH",
    "INVALID_TYPED_LITERAL",
    "MISSING_AGGREGATION",
    "MISSING_GROUP_BY",
    "PARSE_EMPTY_STATEMENT",
    "PARSE_SYNTAX_ERROR",
    "TABLE_OR_VIEW_NOT_FOUND",
    "UNRESOLVED_ROUTINE",
    "UNSUPPORTED_DATATYPE",
    "WRONG_NUM_ARGS",
}

_JAVA_CLASS = re.compile(r"^(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error): ")


def keep_pyspark_quiet() -> None:
    """It would log each error of a statement, with Java's stack, besides raising it."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turns errors of Spark, and of the source in Spark's workers, into QueryError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as exc:
        raise QueryError(message_of(str(exc))) from exc


def may_be_of_columns(error: QueryError) -> bool:
    """Tell whether another try with all columns may end otherwise: if Spark has raised it, of columns, or unnamed.

    What this package refuses is final, and so is a statement that Spark can't parse, or that names what is none.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    cause = error.__cause__
    if isinstance(cause, PySparkException):
        return (cause.getCondition() or "").partition(".")[0] not in OF_NO_COLUMNS
    return isinstance(cause, Py4JError)


def message_of(text: str) -> str:
    """Return what a user needs of an error of Spark: the source's own words, or Spark's first lines, without stacks."""
    if ours := _OURS.findall(text):
        last: str = ours[-1]
        return last
    lines = text.split("== SQL", 1)[0].split("JVM stacktrace", 1)[0].splitlines()
    told = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith(("at ", "'", "+-", ":-"))]
    if told and told[0].startswith("An error occurred while calling"):
        told = told[1:]
    return _JAVA_CLASS.sub("", " ".join(told[:3]))


POLL_SECONDS = 0.2


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also in a process that was started with SIGINT ignored.

    To be entered on the main thread. A Spark that starts on another one sets no handler itself.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run_interruptibly(execute: Callable[[], None], cancel: Callable[[], object]) -> None:
    """Raises what `execute` raises; KeyboardInterrupt, when it has ended, if there was one.

    cancel: called again and again, as a statement that is still being planned has nothing to be cancelled yet.
    """
    running: Future[None] = Future()

    def run() -> None:
        try:
            execute()
            running.set_result(None)
        except BaseException as exc:
            running.set_exception(exc)

    thread = Thread(target=run, name="statement")
    try:
        thread.start()
        running.result()
    except KeyboardInterrupt:
        while thread.is_alive():
            cancel()
            thread.join(POLL_SECONDS)
        raise
