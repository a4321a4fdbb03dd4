"""The claim: one object in the bucket, which each start of a broker replaces by a conditional write.

It has an epoch that is larger than any before, and names the broker, its data directory and durability, and a nonce by
which a broker knows its own claim when the reply to its write was lost. docs/discussion/durability.md says how an older
broker is stopped. With `wal` that is by a look at the claim every WATCH_SECONDS: a start with another data directory
waits for TAKEOVER_WAIT_SECONDS. A start that ends while it waits has replaced the older claim, so its own names the
directories that it had not waited for yet (`unsettled`), until it has (`settle`).
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import ClassVar, NoReturn

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.cluster.membership.records import to_wait_for
from kafscale.cluster.metadata.converter import decode, encode, keeping_others, others_field, random_uuid, uuid_text
from kafscale.concurrency.clocks import elapsed
from kafscale.concurrency.nurseries import leaves
from kafscale.concurrency.signals import Signal
from kafscale.errors import (
    DamagedObject,
    DeclaredDead,
    Fenced,
    KafScaleError,
    NotFound,
    PreconditionFailed,
    StartupError,
    StorageFailed,
    StoreError,
)
from kafscale.store.base import ObjectStore
from kafscale.store.paths import EPOCH_MAX, system_key

WATCH_SECONDS = 2.0
TAKEOVER_WAIT_SECONDS = 3.0  # WATCH_SECONDS, and a second for the look itself
LATELY_SECONDS = 3.0  # the same: with the watch going on, the last look is never older
# Above every epoch: added to that of a broker alone which became one of several. Versions that know nothing of those
# stop when they find it, and none can start behind it.
SEVERAL = EPOCH_MAX + 1

logger = logging.getLogger(__name__)


@keeping_others
@attrs.frozen(kw_only=True)
class Claim:
    """Content of the object. `acknowledges_locally`: the broker runs with `--durability wal`.

    `unsettled` are directories of earlier brokers that may still acknowledge, because no start has waited for them; ""
    for an unknown one. `is_released`: the broker has stopped in order, and its disk has nothing that the bucket lacks.
    `others` holds fields of later versions.
    """

    epoch: int
    broker_id: int
    directory_id: str
    acknowledges_locally: bool
    nonce: str = attrs.field(factory=lambda: uuid_text(random_uuid()))
    unsettled: tuple[str, ...] = ()
    is_released: bool = False
    others: Mapping[str, object] = others_field()

    @property
    def is_of_several(self) -> bool:
        """Tell whether several brokers share the bucket, which ends the claims."""
        return self.epoch >= SEVERAL

    def check_may_follow(self, wanted: Claim) -> None:
        """Raise StartupError if a broker with another id wants the bucket while the broker of this claim may run.

        It does not run if it has released its claim, or if the other one has locked its data directory.
        """
        if self.is_released or wanted.broker_id == self.broker_id or wanted.directory_id == self.directory_id:
            return
        raise StartupError(
            f"broker {self.broker_id} has the bucket to itself and did not stop in order, so it may be running: if "
            "both are to run, start both with --several-brokers; if this one is to take its place, start it with "
            f"--broker-id {self.broker_id}, or stop the other one first"
        )

    def unsettled_for(self, directory_id: str) -> tuple[str, ...]:
        """Return the directories that the next broker, with this directory, must wait for."""
        return to_wait_for(self.unsettled, self.directory_id if self.acknowledges_locally else None, directory_id)


class SharedBucket(StartupError):
    """Raised when several brokers share the bucket, so that none can claim it."""


@attrs.frozen
class Claimed:
    """A new claim, and the one that it replaced."""

    claim: Claim
    previous: Claim | None

    @property
    def must_wait(self) -> bool:
        """Tell whether an older broker may still be acknowledging."""
        return bool(self.claim.unsettled)


def claim_key(namespace: str) -> str:
    return system_key("epoch", namespace=namespace)


async def claim(
    store: ObjectStore,
    namespace: str,
    wanted: Claim,
    *,
    least_epoch: Callable[[], Awaitable[int]],
    replaces_others: bool = True,
) -> Claimed:
    """Claim the next epoch, at least that of `wanted`. Raises StoreError, DamagedObject, SharedBucket.

    `least_epoch` is called if there is no claim. Unless it `replaces_others`, this raises StartupError if a broker with
    another id may be running, and writes nothing.
    """
    key = claim_key(namespace)
    replaced: Claim | None = None
    while True:
        try:
            current, etag = await read_claim(store, namespace)
        except NotFound:
            least = await least_epoch()
            wanted = attrs.evolve(wanted, epoch=max(wanted.epoch, least), unsettled=("",) if least else ())
            write = partial(store.put_if_absent, key, [encode(wanted)])
        else:
            if current.nonce == wanted.nonce:
                return Claimed(current, replaced)  # the reply to our write was lost
            if current.is_of_several:
                raise SharedBucket(
                    "several brokers share the bucket, so none can have it for itself: a broker joins them with "
                    "--several-brokers, and commands need --bootstrap and a broker that runs"
                )
            if not replaces_others:
                current.check_may_follow(wanted)
            replaced = current
            unsettled = current.unsettled_for(wanted.directory_id)
            wanted = attrs.evolve(wanted, epoch=max(wanted.epoch, current.epoch + 1), unsettled=unsettled)
            write = partial(store.put_if_match, key, [encode(wanted)], etag)
        try:
            await write()
        except PreconditionFailed:
            continue  # another broker is starting at the same moment: the last one leads
        return Claimed(wanted, replaced)


async def read_claim(store: ObjectStore, namespace: str) -> tuple[Claim, str]:
    """Return the claim in the bucket, and its etag. Raises NotFound, DamagedObject, StoreError."""
    key = claim_key(namespace)
    found = await store.get(key)
    return decode_claim(key, found.data), found.etag


async def settle(store: ObjectStore, namespace: str, own: Claim) -> None:
    """Record that all directories that `own` names were waited for. Raises Fenced, StoreError, DamagedObject."""
    while True:
        try:
            current, etag = await read_claim(store, namespace)
        except NotFound:
            return  # it was deleted by hand; the next start will wait
        _check_leads(current, own)
        if not current.unsettled:
            return  # the reply to our write was lost
        with suppress(PreconditionFailed):
            await store.put_if_match(claim_key(namespace), [encode(attrs.evolve(own, unsettled=()))], etag)
            return


async def release(store: ObjectStore, namespace: str, own: Claim) -> None:
    """Note an orderly stop, unless another broker has claimed. Raises StoreError, DamagedObject."""
    await _replace_own(store, namespace, own, lambda current: attrs.evolve(current, is_released=True))


async def give_back(store: ObjectStore, namespace: str, claimed: Claimed) -> None:
    """Restore the directory of the claim before, for a command whose directory has nothing that the bucket lacks.

    So the next start need neither wait for that directory nor ask for it. Does nothing if another broker has claimed
    meanwhile. Raises StoreError, DamagedObject.
    """
    own, previous = claimed.claim, claimed.previous
    if previous is None:
        given = attrs.evolve(own, acknowledges_locally=False, is_released=True)
    else:
        given = attrs.evolve(previous, epoch=own.epoch, nonce=own.nonce)
    await _replace_own(store, namespace, own, lambda _current: given)


async def _replace_own(store: ObjectStore, namespace: str, own: Claim, change: Callable[[Claim], Claim]) -> None:
    with suppress(NotFound, PreconditionFailed):
        current, etag = await read_claim(store, namespace)
        if current.nonce == own.nonce:
            await store.put_if_match(claim_key(namespace), [encode(change(current))], etag)


async def watch_claim(
    check: LeadCheck, interval_seconds: float = WATCH_SECONDS, may_rest: Callable[[], bool] = lambda: False
) -> NoReturn:
    """Look whether this broker still leads, until cancelled; skip looks while it `may_rest`. Raises Fenced."""
    while True:
        with trio.move_on_after(interval_seconds):
            await check.sooner.wait()
        if not check.sooner.is_set() and may_rest():
            continue
        check.sooner.clear()
        try:
            await check.confirm()
        except (StoreError, DamagedObject) as exc:
            logger.debug("the claim can't be read, so nothing is known of another broker: %s", exc)


async def check_claim(store: ObjectStore, namespace: str, own: Claim) -> None:
    """Look once whether this broker still leads. Raises Fenced, StoreError, DamagedObject.

    Every broker that claims an epoch later sees what this one wrote before.
    """
    current, _ = await read_claim(store, namespace)
    _check_leads(current, own)


def _check_leads(current: Claim, own: Claim) -> None:
    if current.epoch > own.epoch:
        raise Fenced(
            f"broker {current.broker_id} has taken over with epoch {current.epoch}: "
            f"this one, of epoch {own.epoch}, has been superseded"
        )


@attrs.define(eq=False, repr=False)
class _Look:
    """One look at the bucket, for all tasks that asked before it began."""

    done: trio.Event = attrs.field(factory=trio.Event)
    failure: Exception | None = None
    was_cancelled: bool = False


@attrs.define(eq=False, kw_only=True, repr=False)
class LeadCheck:
    """Asks the bucket whether a broker still leads; tasks that ask together share a look.

    `sooner` wakes the watch. `asked_at` is when `has_led_within` was asked last, `led_at` the beginning of the last
    look that found that it leads. `may_start_anew`: the broker may start again at once if it was declared dead.
    """

    may_start_anew: ClassVar[bool]

    sooner: Signal = attrs.field(factory=Signal, init=False)
    asked_at: float = attrs.field(default=-math.inf, init=False)
    led_at: float = attrs.field(factory=elapsed, init=False)
    _next: _Look | None = attrs.field(default=None, init=False)
    _looking: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock, init=False)

    async def confirm(self) -> None:
        """Return if it leads after the call. Raises Fenced, StoreError, DamagedObject."""
        while True:
            look = self._next
            if look is None:
                look = self._next = _Look()
                await self._perform(look)
            else:
                await look.done.wait()
            if look.failure is not None:
                raise look.failure
            if not look.was_cancelled:
                return

    async def confirm_lately(self, within_seconds: float = LATELY_SECONDS) -> None:
        """Return if it has led within this time; look if the watch has not, as after a suspension.

        With less than LATELY_SECONDS this also fails while the bucket is away. Raises Fenced, StoreError.
        """
        if not self.has_led_within(within_seconds):
            with suppress(DamagedObject):  # it names no other broker
                await self.confirm()

    def has_led_within(self, seconds: float) -> bool:
        self.asked_at = now = elapsed()
        return now - self.led_at <= seconds

    async def _perform(self, look: _Look) -> None:
        look.was_cancelled = True
        try:
            async with self._looking:
                self._next = None  # a task that asks from now on may have written after this look
                began = elapsed()
                await self.look_once()
                self.led_at = began
            look.was_cancelled = False
        except (StoreError, DamagedObject, Fenced) as exc:
            look.failure = exc
        finally:
            if self._next is look:
                self._next = None
            look.done.set()

    @abstractmethod
    async def look_once(self) -> None:
        """Look once at the bucket. Raises Fenced, StoreError, DamagedObject."""


@attrs.define(eq=False, kw_only=True, repr=False)
class ClaimCheck(LeadCheck):
    """Looks whether the claim is still that of this lone broker."""

    may_start_anew = False

    store: ObjectStore
    namespace: str
    own: Claim

    async def look_once(self) -> None:
        with suppress(NotFound):  # it was deleted by hand, and there is no new claim
            await check_claim(self.store, self.namespace, self.own)


def decode_claim(key: str, data: Buffer) -> Claim:
    """Decode a claim. Raises DamagedObject, which names the key."""
    try:
        return decode(Claim, bytes(data))
    except DamagedObject as exc:
        raise DamagedObject(f"{key}: {exc}") from exc


LOOK_MAX_SECONDS = 2.0  # a look takes one request, and a bucket that is away must not keep a broker from ending
RETRY_SECONDS = 0.5


async def cause_of_end(check: LeadCheck, error: Exception, is_stopping: Callable[[], bool]) -> Exception:
    """Return the error that a broker ends with: DeclaredDead or another Fenced if the bucket says so, else `error`.

    A fenced broker ends by whichever error comes first: the fence in its stream, a look at the bucket, a commit that
    fails, an object that others have deleted. Several errors may come at once, in any order; so the bucket is asked
    when all tasks have ended. A broker that has met a fence asks until the bucket answers, unless it `is_stopping`; any
    other one asks once. A bug keeps its traceback: it is logged if the broker is to start anew, and returned otherwise.
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
    """Return why this broker may not act; None if it may, or the bucket does not answer."""
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
