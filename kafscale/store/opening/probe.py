"""Checks of the object store before a broker starts: it exists, gives access, and decides conditional writes.

Every problem becomes a `StartupError` of one line that says what is wrong and what to do.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Iterator
from contextlib import aclosing, contextmanager, suppress

import trio

from kafscale.errors import (
    AccessDenied,
    ClockRefused,
    EncryptionRefused,
    NoCredentials,
    NoPermission,
    NotFound,
    PreconditionFailed,
    SlowDown,
    StartupError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    WrongRegion,
)
from kafscale.store.base import ObjectStore
from kafscale.store.paths import system_key

CLEANUP_TIMEOUT_SECONDS = 5.0

# The first that an error is an instance of, and what to do.
_PROBLEMS: tuple[tuple[type[StoreError], str, str], ...] = (
    (NotFound, "the bucket does not exist", "create it, or pass --s3-create-bucket"),
    (
        NoPermission,
        "this user may not use the directory of the store",
        "check its owner and mode, or give another --store or --data-dir",
    ),
    (
        AccessDenied,
        "the object store refused the credentials",
        "check them, and that they may list, read and write",
    ),
    (WrongRegion, "the bucket is in another region", "check --s3-region and --s3-endpoint"),
    (StoreFull, "the disk of the object store is full", "free some space there; nothing is lost"),
    (
        StoreUnavailable,
        "the object store can't be reached",
        "check --s3-endpoint (http or https?), --s3-ca-file and the network",
    ),
    (SlowDown, "the object store is not ready", "start again when it is"),
    (StoreError, "the object store can't be used", "check the --s3 options"),
)


async def check_usable(store: ObjectStore) -> None:
    """List the bucket and probe its conditional writes. Raises StartupError."""
    with startup_errors():
        await check_listable(store)
        await probe_conditional_writes(store)


async def check_listable(store: ObjectStore) -> None:
    """List a page. Raises StoreError."""
    async with aclosing(store.list("")) as pages:
        async for _ in pages:
            break


@contextmanager
def startup_errors() -> Iterator[None]:
    """Turn a `StoreError` of the block into a StartupError."""
    try:
        yield
    except (EncryptionRefused, NoCredentials) as exc:  # which say what to do
        raise StartupError(" ".join(str(exc).split())) from exc
    except ClockRefused as exc:
        raise StartupError(" ".join(f"the object store refuses this machine's clock: {exc}".split())) from exc
    except StoreError as exc:
        problem, advice = next((problem, advice) for kind, problem, advice in _PROBLEMS if isinstance(exc, kind))
        if isinstance(exc, WrongRegion) and exc.region:
            advice = f"pass --s3-region {exc.region}"
        raise StartupError(f"{problem}: {' '.join(str(exc).split())}; {advice}") from exc


async def probe_conditional_writes(store: ObjectStore) -> None:
    """Write, overwrite and delete a probe object. Raises StartupError if a write wins that must lose, StoreError."""
    key = system_key("probe", uuid.uuid4().hex)
    try:
        first = await store.put_if_absent(key, [b"first"])
        await _must_lose(store.put_if_absent(key, [b"second"]), "If-None-Match")
        await store.put_if_match(key, [b"third"], first)
        await _must_lose(store.put_if_match(key, [b"fourth"], first), "If-Match")
        if bytes((await store.get(key)).data) != b"third":
            raise StartupError("the object store loses conditional writes that it has accepted; use another store")
    finally:
        with trio.CancelScope(deadline=trio.current_time() + CLEANUP_TIMEOUT_SECONDS, shield=True):
            # A probe that stays behind does no harm, and what went wrong before is what matters.
            with suppress(StoreError):
                await store.delete([key])


async def _must_lose(write: Awaitable[str], condition: str) -> None:
    with suppress(PreconditionFailed):
        await write
        raise StartupError(
            f"the object store ignores {condition}, so that two brokers could overwrite each other's data; "
            "use a store that honours conditional writes (AWS S3, MinIO, Ceph Squid or later, R2)"
        )
