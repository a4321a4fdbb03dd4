"""A statement that Ctrl-C cancels.

It runs on a thread of its own: an interrupt in the midst of a call to Spark's JVM would leave the answer behind for the
next call. The main thread waits, has Spark cancel what runs, and goes on when the statement has ended.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread

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
