"""What Spark raises, as errors that tell the user what to do in one line."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from kafscale.errors import QueryError

_OURS = re.compile(r"^kafscale\.[\w.]+: (.+)", re.MULTILINE)  # in the traceback of a worker
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


def is_of_spark(error: QueryError) -> bool:
    """Tell whether Spark has raised it, and not this package of a statement that it does not take."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error.__cause__, (PySparkException, Py4JError))


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
