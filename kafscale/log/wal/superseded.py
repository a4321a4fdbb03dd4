"""Entries of the local log that a start does not replay, as another broker has written their offsets since.

They were acknowledged here, and only this data directory has them: they are left to the user, in copies of the files
that they are in.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from kafscale.errors import StorageFull
from kafscale.formats.wal_entries import WalFile

KEPT_PREFIX = "superseded-"  # of the copy of a file, which no replay looks at

logger = logging.getLogger(__name__)


async def keep_copies(
    superseded: Counter[WalFile], keep_copy: Callable[[WalFile], Awaitable[bool]], location: str
) -> None:
    """Copy these files, and tell the user of those that are new; the others are taken out. Raises StorageFailed.

    `keep_copy` says whether there was no copy yet; it raises StorageFull where there is no room for one.
    """
    for file in tuple(superseded):
        try:
            is_new = await keep_copy(file)
        except StorageFull as exc:
            logger.error(
                "%s, whose batches another broker has superseded: it stays in the log, and what is behind it, "
                "until a start that finds some",
                exc,
            )
            is_new = False
        if not is_new:
            del superseded[file]  # an earlier start has kept it and said so, or a later one will
    if superseded:
        logger.error(
            "%d record batches that were acknowledged here are not in the log: another broker has taken over and "
            "written the same partitions; they are kept in %s of %s: see `kafscale inspect --batches`",
            superseded.total(),
            ", ".join(f"{KEPT_PREFIX}{file.name}" for file in superseded),
            location,
        )
