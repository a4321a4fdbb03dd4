"""Large objects in parts, uploaded in parallel, since one connection is slow.

This wrapper is outermost, as each part is an operation: it waits for its own token, is retried and measured. The object
appears when the upload is completed, under the condition of a single PUT; a completion whose reply was lost is resolved
like any conditional write. An error or cancel aborts the upload; parts of a failed abort are left to the bucket's
lifecycle rule (AbortIncompleteMultipartUpload).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import attrs
import trio

from kafscale.buffers import Buffer, cut, size_of
from kafscale.concurrency.nurseries import ungrouped
from kafscale.errors import Conflict, NotFound, StoreError
from kafscale.store.base import ForwardingStore, MultipartUploads, Upload, UploadedPart
from kafscale.store.wrappers.limiter import StoreLimiter, WorkClass
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.store.wrappers.retrying import RetryingStore

logger = logging.getLogger(__name__)

PART_BYTES = 16 * 1024 * 1024  # S3's least is 5 MiB; AWS advises 8 to 16. At most 10,000 parts, so up to 156 GiB
PARTS_AT_ONCE_COUNT = 8  # of one object: eight connections fill 10 Gbit/s, and leave tokens to other objects
ATTEMPTS_COUNT = 3  # an upload that met another writer's (409), or was aborted by somebody, is begun again
ABORT_SECONDS = 5.0

T = TypeVar("T")


@attrs.define(eq=False, kw_only=True, repr=False)
class MultipartStore(ForwardingStore):
    """An `ObjectStore` that writes objects of more than `threshold_bytes` in parts of `part_bytes`.

    `put_if_match` never does: it writes nothing large.
    """

    store: RetryingStore
    _uploads: MultipartUploads
    _limiter: StoreLimiter
    _work_class: WorkClass
    _metrics: StoreMetrics
    _threshold_bytes: int
    _part_bytes: int = PART_BYTES

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        if not self._is_large(parts):
            return await self.store.put(key, parts)
        return await self._put_large(key, parts, if_absent=False)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        if not self._is_large(parts):
            return await self.store.put_if_absent(key, parts)
        return await self._put_large(key, parts, if_absent=True)

    def _is_large(self, parts: Sequence[Buffer]) -> bool:
        return size_of(parts) > max(self._threshold_bytes, self._part_bytes)

    async def _put_large(self, key: str, parts: Sequence[Buffer], *, if_absent: bool) -> str:
        attempts_left_count = ATTEMPTS_COUNT
        while True:
            attempts_left_count -= 1
            try:
                return await self._upload(key, parts, if_absent=if_absent)
            except (Conflict, NotFound):
                if not attempts_left_count:
                    raise

    async def _upload(self, key: str, parts: Sequence[Buffer], *, if_absent: bool) -> str:
        upload = await self._retried("begin_upload", partial(self._uploads.begin_upload, key))
        try:
            uploaded = await self._put_parts(upload, parts)
            complete = partial(self._uploads.complete_upload, upload, uploaded, if_absent=if_absent)
            operation = "complete_upload"
            return await self.store.decided(operation, key, parts, partial(self._attempt, operation, complete))
        except BaseException:
            await self._abort(upload)
            raise

    async def _put_parts(self, upload: Upload, parts: Sequence[Buffer]) -> Sequence[UploadedPart]:
        pieces = enumerate(cut(parts, self._part_bytes), start=1)
        uploaded: list[UploadedPart] = []

        async def work() -> None:
            for number, piece in pieces:
                put = partial(self._uploads.put_part, upload, number, piece)
                uploaded.append(await self._retried("put_part", put))
                self._metrics.bytes.of("written").value += size_of(piece)

        with ungrouped():
            async with trio.open_nursery() as nursery:
                for _ in range(PARTS_AT_ONCE_COUNT):
                    nursery.start_soon(work)
        return uploaded

    async def _abort(self, upload: Upload) -> None:
        with trio.move_on_after(ABORT_SECONDS, shield=True):
            try:
                await self._retried("abort_upload", partial(self._uploads.abort_upload, upload))
            except StoreError as exc:
                logger.warning("the parts of an upload that was given up stay behind: %s", exc)

    async def _retried(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        return await self.store.retried(operation, partial(self._attempt, operation, call))

    async def _attempt(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        with await self._limiter.acquire(self._work_class), self._metrics.measured(operation):
            return await call()
