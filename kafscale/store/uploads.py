"""What a store is asked that takes an object in parts, as S3 does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import attrs

from kafscale.buffers import Buffer


@attrs.frozen
class Upload:
    """An upload that has begun."""

    key: str
    upload_id: str


@attrs.frozen(kw_only=True)
class UploadedPart:
    """A part that the store has: its number, from 1, and what completing the upload must say of it."""

    number: int
    etag: str
    crc32c: str


@runtime_checkable
class MultipartUploads(Protocol):
    """A store that takes an object in parts. Every method may raise what those of `ObjectStore` may."""

    async def begin_upload(self, key: str) -> Upload:
        """Begin an upload; there is no object yet."""
        ...

    async def put_part(self, upload: Upload, number: int, parts: Sequence[Buffer]) -> UploadedPart:
        """Send a part, numbered from 1. Doing it again replaces it. Raises NotFound if there is no such upload."""
        ...

    async def complete_upload(self, upload: Upload, uploaded: Sequence[UploadedPart], *, if_absent: bool) -> str:
        """Make the parts an object, and return its ETag. Raises NotFound, and if `if_absent` PreconditionFailed,
        Conflict.
        """
        ...

    async def abort_upload(self, upload: Upload) -> None:
        """Forget the upload. That there is none is not an error."""
        ...
