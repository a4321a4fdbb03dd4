"""Errors of Spark as one line for the user, and statements that Ctrl-C cancels.

A statement runs on a thread of its own: an interrupt during a call to Spark's JVM would leave the answer behind for the
next call. The main thread waits, cancels the statement in Spark, and goes on once it has ended.
"""

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
    *("DATATYPE_MISMATCH", "INVALID_TYPED_LITERAL", "MISSING_AGGREGATION", "MISSING_GROUP_BY"),
    *("PARSE_EMPTY_STATEMENT", "PARSE_SYNTAX_ERROR", "TABLE_OR_VIEW_NOT_FOUND", "UNRESOLVED_ROUTINE"),
    *("UNSUPPORTED_DATATYPE", "WRONG_NUM_ARGS"),
}
_JAVA_CLASS = re.compile(r"^(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error): ")


def keep_pyspark_quiet() -> None:
    """Stop pyspark from logging each error of a statement besides raising it."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn errors of Spark, and of the source in Spark's workers, into QueryError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as exc:
        raise QueryError(message_of(str(exc))) from exc


def may_be_of_columns(error: QueryError) -> bool:
    """Tell whether all columns may help: for an error of Spark about columns, or one without a condition."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    cause = error.__cause__
    if isinstance(cause, PySparkException):
        return (cause.getCondition() or "").partition(".")[0] not in OF_NO_COLUMNS
    return isinstance(cause, Py4JError)


def message_of(text: str) -> str:
    """Return the source's message in an error of Spark, or Spark's first lines."""
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
    """Make Ctrl-C raise KeyboardInterrupt, also in a process that was started with SIGINT ignored.

    Enter it on the main thread. A Spark that starts on another thread sets no handler.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run_interruptibly(execute: Callable[[], None], cancel: Callable[[], object]) -> None:
    """Run `execute`, and raise its error, or KeyboardInterrupt once it has ended.

    `cancel` is called repeatedly, as a statement that is still being planned can't be cancelled yet.
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
