"""The object store in an S3 bucket, at AWS or any other that speaks S3 (MinIO, Ceph, R2).

`requests` and `replies` make and read the messages, `auth` signs them, and `kafscale.http` carries them. httpx's types
are used without its client, which costs as much CPU as the rest of a small request.
"""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import attrs
import httpx
import trio

from kafscale.buffers import Buffer, size_of
from kafscale.config import StoreEncryption
from kafscale.errors import AccessDenied, RangeNotSatisfiable, StartupError, StoreUnavailable
from kafscale.http.client import TransportStatistics, TrioTransport
from kafscale.http.connection import BufferStream
from kafscale.store.base import ObjectInfo, ObjectPart, Upload, UploadedPart
from kafscale.store.s3.auth import CredentialSource, SigV4Auth
from kafscale.store.s3.credentials import configured_region, default_providers, given
from kafscale.store.s3.replies import (
    S3Reply,
    check_abortion,
    check_created,
    check_deletion,
    read_completion,
    read_etag,
    read_info,
    read_listing,
    read_part,
    read_upload,
)
from kafscale.store.s3.requests import BodyDigest, BucketAddress, S3Request, S3Requests
from kafscale.store.s3.sigv4 import S3Credentials

T = TypeVar("T")

REGION_DEFAULT = "us-east-1"

# Above these, checksums are computed in a thread, which costs 0.1 ms: SHA-256 does 2 GB/s, CRC-32C 20 GB/s.
HASH_INLINE_BYTES = 256 * 1024
CRC_INLINE_BYTES = 4 * 1024 * 1024
HASH_THREAD_COUNT = 2


@attrs.frozen(kw_only=True)
class S3Settings:
    """A bucket and its access.

    `endpoint` is scheme://host:port of a store other than AWS. None for `region` looks it up in environment and
    profile, for `path_style` uses it where it is needed, and for `encryption` leaves it to the bucket. `sign_payload`
    "auto" leaves the protection of bodies to TLS. Timeouts are in seconds without progress.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    ca_file: str | None = None
    encryption: StoreEncryption | None = None
    max_connections: float = math.inf
    sign_payload: Literal["auto", "always", "never"] = "auto"
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 30.0
    write_timeout_seconds: float = 30.0

    def timeouts(self) -> dict[str, float | None]:
        """Return httpx's timeouts. A wait for a connection, which is one for other requests, has none."""
        return {
            "connect": self.connect_timeout_seconds,
            "read": self.read_timeout_seconds,
            "write": self.write_timeout_seconds,
            "pool": None,
        }


class S3Store:
    """An `ObjectStore` whose objects are in a bucket, below a prefix."""

    def __init__(
        self,
        settings: S3Settings,
        *,
        credentials: S3Credentials | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Make a store without connecting. Credentials are found like by AWS SDKs if they are not given.

        Raises ConfigError for a malformed endpoint, and StartupError for an unusable CA or profile file.
        """
        region = settings.region or _find_region()
        self.address = BucketAddress.of(
            settings.bucket,
            region,
            endpoint=settings.endpoint,
            path_style=settings.path_style,
            prefix=settings.prefix,
        )
        self._requests = S3Requests(self.address, settings.encryption)
        self._host = urlsplit(self.address.origin).netloc
        self._extensions = {"timeout": settings.timeouts(), "whole_body": True}
        self._transport = transport or TrioTransport(
            max_connections=settings.max_connections, ssl_context=_ssl_context(settings.ca_file)
        )
        self._credential_transport = TrioTransport()
        providers = default_providers(os.environ, Path.home()) if credentials is None else given(credentials)
        self._auth = SigV4Auth(CredentialSource(providers, self._credential_transport), region)
        self._signs_payload = settings.sign_payload == "always" or (
            settings.sign_payload == "auto" and not self.address.is_secure
        )
        self._hash_limiter = trio.CapacityLimiter(HASH_THREAD_COUNT)

    async def get(self, key: str) -> ObjectPart:
        return await self._perform(self._requests.get(key), read_part)

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        return await self._perform(self._requests.get_range(key, start, length_bytes), read_part)

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        try:
            return await self._perform(self._requests.get_tail(key, length_bytes), read_part)
        except RangeNotSatisfiable:
            # S3 finds no last bytes in an empty object.
            info = await self.head(key)
            if info.size_bytes:
                raise
            return ObjectPart(b"", 0, info.etag)

    async def head(self, key: str) -> ObjectInfo:
        return await self._perform(self._requests.head(key), partial(read_info, key))

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        return await self._perform(self._requests.put(key, parts, await self._digest(parts)), read_etag)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        return await self._perform(self._requests.put_if_absent(key, parts, await self._digest(parts)), read_etag)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        request = self._requests.put_if_match(key, parts, await self._digest(parts), etag=etag)
        return await self._perform(request, read_etag)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        continuation_token = None
        while True:
            request = self._requests.list_page(prefix, start_after=start_after, continuation_token=continuation_token)
            listing = await self._perform(request, partial(read_listing, prefix=self.address.prefix))
            if listing.rows:
                yield listing.rows
            continuation_token = listing.continuation_token
            if continuation_token is None:
                return

    async def delete(self, keys: Sequence[str]) -> None:
        for request in self._requests.delete(keys):
            await self._perform(request, check_deletion)

    async def begin_upload(self, key: str) -> Upload:
        return await self._perform(self._requests.begin_upload(key), partial(read_upload, key))

    async def put_part(self, upload: Upload, number: int, parts: Sequence[Buffer]) -> UploadedPart:
        digest = await self._digest(parts)
        etag = await self._perform(self._requests.put_part(upload, number, parts, digest), read_etag)
        return UploadedPart(number=number, etag=etag, crc32c=digest.crc32c)

    async def complete_upload(self, upload: Upload, uploaded: Sequence[UploadedPart], *, if_absent: bool) -> str:
        request = self._requests.complete_upload(upload, uploaded, if_absent=if_absent)
        return await self._perform(request, read_completion)

    async def abort_upload(self, upload: Upload) -> None:
        await self._perform(self._requests.abort_upload(upload), check_abortion)

    async def create_bucket(self) -> None:
        await self._perform(self._requests.create_bucket(), check_created)

    async def aclose(self) -> None:
        await self._transport.aclose()
        await self._credential_transport.aclose()

    def statistics(self) -> TransportStatistics | None:
        """Return the counts of the connection pool; None for a transport without counts."""
        return self._transport.statistics() if isinstance(self._transport, TrioTransport) else None

    async def _perform(self, request: S3Request, read: Callable[[S3Request, S3Reply], T]) -> T:
        http_request = httpx.Request(
            request.method,
            request.url,
            headers={"host": self._host, **request.headers},
            stream=BufferStream(request.parts),
            extensions={**self._extensions, "idempotent": request.idempotent},
        )
        try:
            async with aclosing(self._auth.async_auth_flow(http_request)) as flow:
                reply = await self._converse(flow)
        except httpx.TransportError as exc:
            reason = str(exc) or type(exc).__name__
            raise StoreUnavailable(f"{request}: {reason}") from exc
        return read(request, reply)

    async def _converse(self, flow: AsyncGenerator[httpx.Request, httpx.Response]) -> S3Reply:
        """Send the requests of the auth flow until it accepts the response."""
        http_request = await anext(flow)
        while True:
            response = await self._transport.handle_async_request(http_request)
            try:
                try:
                    http_request = await flow.asend(response)
                except StopAsyncIteration:
                    body = await _read_body(response)
                    return S3Reply(response.status_code, dict(response.headers.items()), body)
            finally:
                await response.aclose()

    async def _digest(self, parts: Sequence[Buffer]) -> BodyDigest:
        inline_bytes = HASH_INLINE_BYTES if self._signs_payload else CRC_INLINE_BYTES
        if size_of(parts) <= inline_bytes:
            return BodyDigest.of(parts, sign_payload=self._signs_payload)
        return await trio.to_thread.run_sync(
            lambda: BodyDigest.of(parts, sign_payload=self._signs_payload), limiter=self._hash_limiter
        )


async def _read_body(response: httpx.Response) -> Buffer:
    if response.is_stream_consumed:
        return response.content
    assert isinstance(response.stream, httpx.AsyncByteStream)
    pieces = [piece async for piece in response.stream]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _find_region() -> str:
    try:
        return configured_region(os.environ, Path.home()) or REGION_DEFAULT
    except AccessDenied as exc:
        raise StartupError(f"{exc}; mend the file, or pass --s3-region and set AWS_ACCESS_KEY_ID") from exc


def _ssl_context(ca_file: str | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as exc:
        raise StartupError(f"the CA file {ca_file} can't be used: {exc}") from exc
