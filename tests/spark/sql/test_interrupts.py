"""Ctrl-C while a statement runs."""

import signal
import threading

import pytest

from kafscale.errors import QueryError
from kafscale.spark.sql.failures import interruptible, run_interruptibly


def test_errors_of_a_statement_are_raised():
    def fail() -> None:
        raise QueryError("it is bad")

    with pytest.raises(QueryError, match="it is bad"):
        run_interruptibly(fail, lambda: None)


def test_an_interrupt_cancels_until_the_statement_has_ended():
    cancelled = threading.Semaphore(0)
    ended = threading.Event()

    def statement() -> None:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # wakes it also from a wait for a lock
        for _ in range(2):  # what was not running yet is cancelled by a later call
            assert cancelled.acquire(timeout=10)
        ended.set()

    with interruptible(), pytest.raises(KeyboardInterrupt):
        run_interruptibly(statement, cancelled.release)
    assert ended.is_set()


def test_an_ignored_interrupt_is_raised_and_its_handler_is_restored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
