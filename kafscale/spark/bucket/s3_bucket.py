"""A bucket in S3, by the broker's requests and replies (`kafscale.store.s3`)."""

from __future__ import annotations

import logging
import math
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import attrs

from kafscale.backoff import Backoff
from kafscale.errors import AccessDenied, ConfigError, SlowDown, StoreError, StoreUnavailable
from kafscale.http.blocking import BlockingClient, NoServerAnswer, ServerAnswer, split_url
from kafscale.spark.bucket.bucket import BucketOptions
from kafscale.store.base import ObjectInfo, ObjectPart
from kafscale.store.s3.credentials import (
    ANSWER_MAX_BYTES,
    REFRESH_RETRY_SECONDS,
    HttpAnswer,
    HttpCall,
    Providers,
    configured_region,
    default_providers,
    given,
    refresh_at_seconds,
    search,
)
from kafscale.store.s3.replies import ErrorBody, ListingPage, S3Reply, read_listing, read_part
from kafscale.store.s3.requests import BucketAddress, S3Request, S3Requests
from kafscale.store.s3.sigv4 import RequestSigner, S3Credentials

REGION_DEFAULT = "us-east-1"
TIMEOUT_SECONDS = 30.0  # without progress
RETRY_SECONDS = 60.0  # after which an operation that only fails is reported; the broker's is as long
BACKOFF = Backoff(0.05, 5.0)  # as the broker's
AGAIN_SECONDS = 60.0  # after which credentials that do not expire are looked up again, which costs reading a file
SOURCES_MAX_COUNT = 4

logger = logging.getLogger(__name__)

T = TypeVar("T")


def open_s3_bucket(options: BucketOptions) -> S3Bucket:
    """Open a bucket without connecting to it yet. Raises ConfigError."""
    try:
        region = options.region or configured_region(os.environ, Path.home()) or REGION_DEFAULT
    except AccessDenied as exc:
        raise ConfigError(f"{exc}; mend the file, or give the option s3Region and credentials") from exc
    address = BucketAddress.of(
        options.url.bucket,
        region,
        endpoint=options.endpoint,
        path_style=options.path_style,
        prefix=options.url.prefix,
    )
    context = None if options.ca_file is None else ssl.create_default_context(cafile=options.ca_file)
    client = BlockingClient(timeout_seconds=TIMEOUT_SECONDS, ssl_context=context)
    if options.credentials is None:
        credentials = _source_of(
            frozenset(item for item in os.environ.items() if item[0].startswith("AWS_")), Path.home()
        )
    else:
        credentials = _CredentialSource(providers=given(options.credentials))
    return S3Bucket(
        requests=S3Requests(address),
        client=client,
        signer=RequestSigner(region=region),
        credentials=credentials,
    )


@attrs.define(eq=False, kw_only=True, repr=False)
class S3Bucket:
    """A bucket in S3. Failures that may pass are retried with jittered backoff."""

    requests: S3Requests
    client: BlockingClient
    signer: RequestSigner
    credentials: _CredentialSource
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        return self._read(self.requests.get_range(key, start, length_bytes))

    def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        return self._read(self.requests.get_tail(key, length_bytes))

    def get(self, key: str) -> ObjectPart:
        return self._read(self.requests.get(key))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        token: str | None = None
        while True:
            request = self.requests.list_page(prefix, start_after=start_after, continuation_token=token)
            page = self._retried(partial(self._list_page, request))
            yield from page.rows
            token = page.continuation_token
            if token is None:
                return

    def close(self) -> None:
        self.client.close()

    def _read(self, request: S3Request) -> ObjectPart:
        return self._retried(lambda: read_part(request, self._perform(request)))

    def _list_page(self, request: S3Request) -> ListingPage:
        return read_listing(request, self._perform(request), self.requests.address.prefix)

    def _retried(self, attempt: Callable[[], T]) -> T:
        deadline = self.clock() + RETRY_SECONDS
        retries_count = 0
        while True:
            try:
                return attempt()
            except (SlowDown, StoreUnavailable):
                pause_seconds = random.uniform(0, BACKOFF.seconds(retries_count))
                if self.clock() + pause_seconds > deadline:
                    raise
            self.sleep(pause_seconds)
            retries_count += 1

    def _perform(self, request: S3Request) -> S3Reply:
        credentials = self.credentials.get()
        answer, signed_at_seconds = self._send(request, credentials)
        if answer.status in (400, 403):
            error = ErrorBody.of(answer.body)
            if self.signer.learns_clock(answer.headers.get("date", ""), error, signed_at_seconds):
                answer, _ = self._send(request, credentials)
            elif credentials.session_token is not None and error.is_expired:
                self.credentials.discard(credentials)
                answer, _ = self._send(request, self.credentials.get())
        return S3Reply(answer.status, answer.headers, answer.body)

    def _send(self, request: S3Request, credentials: S3Credentials) -> tuple[ServerAnswer, float]:
        origin, target = split_url(request.url)
        headers = {"host": origin.partition("://")[2], **request.headers}
        signed_at_seconds = self.signer.sign(request.method, target, headers, credentials)
        try:
            return self.client.send(request.method, request.url, headers), signed_at_seconds
        except NoServerAnswer as exc:
            raise StoreUnavailable(
                f"{request.operation} {request.subject}: {self.requests.address.origin} can't be reached ({exc}); "
                "check the endpoint, the region, and the network"
            ) from exc


@attrs.define(eq=False, kw_only=True, repr=False)
class _CredentialSource:
    """Looks credentials up, and again before they expire, or after a while: a file may be written anew."""

    providers: Providers
    clock: Callable[[], float] = time.time
    _held: S3Credentials | None = attrs.field(default=None, init=False)
    _refresh_at_seconds: float = attrs.field(default=0.0, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def get(self) -> S3Credentials:
        """Return credentials that are good now. Raises AccessDenied, saying what was tried, and StoreUnavailable."""
        with self._lock:
            if self._held is None or self.clock() >= self._refresh_at_seconds:
                self._held = self._refreshed(self._held)
            return self._held

    def discard(self, credentials: S3Credentials) -> None:
        with self._lock:
            if self._held == credentials:
                self._held = None

    def _refreshed(self, held: S3Credentials | None) -> S3Credentials:
        try:
            found = self._look_up()
        except StoreError as exc:
            if held is None or self.clock() >= (held.expires_at_seconds or math.inf):
                raise
            logger.warning("S3 credentials could not be looked up again, so the ones from before are used: %s", exc)
            self._refresh_at_seconds = self.clock() + REFRESH_RETRY_SECONDS
            return held
        now = self.clock()
        self._refresh_at_seconds = refresh_at_seconds(found, now) if found.expires_at_seconds else now + AGAIN_SECONDS
        return found

    def _look_up(self) -> S3Credentials:
        lookup = search(self.providers)
        try:
            call = next(lookup)
            while True:
                call = lookup.send(_call(call))
        except StopIteration as stop:
            found: S3Credentials = stop.value
            return found


@lru_cache(SOURCES_MAX_COUNT)
def _source_of(settings: frozenset[tuple[str, str]], home: Path) -> _CredentialSource:
    return _CredentialSource(providers=default_providers(dict(settings), home))


def _call(call: HttpCall) -> HttpAnswer | None:
    client = BlockingClient(
        timeout_seconds=call.timeout_seconds,
        deadline_seconds=call.deadline_seconds,
        body_max_bytes=ANSWER_MAX_BYTES,
    )
    try:
        answer = client.send(call.method, call.url, call.headers, call.body)
    except NoServerAnswer:
        return None
    finally:
        client.close()
    return HttpAnswer(status=answer.status, body=answer.body)
