"""Decides why a broker has ended by an error: the bucket says whether others have fenced or replaced it.

A fenced broker ends by whichever error comes first: the fence at the next object of its stream, a look at the bucket, a
request whose commit can't be written any more, an object that others have deleted. Several errors may come at once, in
any order. So none of them decides; when all tasks have ended, the bucket is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from kafscale.cluster.membership.start.claim import LeadCheck
from kafscale.concurrency.nurseries import leaves
from kafscale.errors import DamagedObject, DeclaredDead, Fenced, KafScaleError, StorageFailed, StoreError

LOOK_MAX_SECONDS = 2.0  # a look takes one request, and a bucket that is away must not keep a broker from ending
RETRY_SECONDS = 0.5

logger = logging.getLogger(__name__)


async def cause_of_end(check: LeadCheck, error: Exception, is_stopping: Callable[[], bool]) -> Exception:
    """Return the error to end with: DeclaredDead or another Fenced if the bucket says so, otherwise `error`.

    A broker that has met a fence can't tell by itself whether it may start anew. So it asks until the bucket answers,
    unless it `is_stopping`; any other one asks once. A bug keeps its traceback: where the broker is to start anew it is
    logged, and otherwise returned.
    """
    errors = list(leaves(ExceptionGroup("", [error])))
    fence = next((leaf for leaf in errors if isinstance(leaf, Fenced)), None)
    cause = await _look(check, lambda: fence is not None and check.may_start_anew and not is_stopping()) or fence
    if cause is None:
        return error
    if not all(isinstance(leaf, KafScaleError) for leaf in errors):
        if not isinstance(cause, DeclaredDead):
            return error
        logger.error("a bug in the broker came to light when it was fenced", exc_info=error)
    return cause


async def _look(check: LeadCheck, goes_on: Callable[[], bool]) -> Fenced | None:
    """Return what the bucket says against this broker; None if it says nothing or can't be asked."""
    is_told = False
    while True:
        reason = "it does not answer"
        with trio.move_on_after(LOOK_MAX_SECONDS):
            try:
                await check.look_once()
                return None
            except Fenced as exc:
                return exc
            except (StoreError, DamagedObject, StorageFailed) as exc:
                reason = str(exc)
        if not goes_on():
            return None
        if not is_told:
            logger.warning("this broker was fenced, and asks the bucket whether it may start anew: %s", reason)
            is_told = True
        await trio.sleep(RETRY_SECONDS)
