"""The limit of open files, and waiting for a descriptor when all are taken.

Connections may take all but a reserve for log, store, metadata and admin server. A lack of descriptors passes, unlike
other errors of a disk. Imports nothing of KafScale.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import time

logger = logging.getLogger(__name__)

NONE_LEFT_ERRORS = frozenset({errno.EMFILE, errno.ENFILE})
WANTED_COUNT = 1 << 20  # Linux's fs.nr_open; some containers have "no limit"
RESERVE_COUNT = 256  # 64 each for the store's connections, for files of a store that is a directory, and for admin
RESERVE_PARTS = 4  # of a low limit, at most one of these
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.05


def raise_limit() -> int:
    """Raise the soft limit to the hard one. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_COUNT if hard == resource.RLIM_INFINITY else min(hard, WANTED_COUNT)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limit()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as exc:
        logger.warning("the limit of open files stays at %d: %s", soft, exc)
    else:
        logger.info("the limit of open files is %d now, no longer %d", wanted, soft)
    return limit()


def limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED_COUNT if soft == resource.RLIM_INFINITY else soft


def first_reserved() -> int:
    """Return the lowest descriptor that a connection must not have: the kernel gives out the lowest free number."""
    most = limit()
    return most - min(RESERVE_COUNT, most // RESERVE_PARTS)


def open_patiently(path: str | os.PathLike[str], flags: int, mode: int = 0o777) -> int:
    """Open a file like `os.open`, but wait up to PATIENCE_SECONDS for a descriptor. For worker threads."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    told = False
    while True:
        try:
            return os.open(path, flags, mode)
        except OSError as exc:
            if exc.errno not in NONE_LEFT_ERRORS or time.monotonic() > give_up_at:
                raise
            if not told:
                told = True
                logger.warning("waiting to open %s: %s", os.fspath(path), exc.strerror)
        time.sleep(PAUSE_SECONDS)
