"""Reads S3's replies, sans-IO: objects, listings and deletions, and errors as exceptions of `kafscale.errors`.

Blocking readers use it too: imports neither trio nor httpx.
"""

from __future__ import annotations

import datetime
import email.utils
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from urllib.parse import unquote
from xml.etree import ElementTree

import attrs

from kafscale.buffers import Buffer
from kafscale.errors import (
    AccessDenied,
    ClockRefused,
    Conflict,
    EncryptionRefused,
    NotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    SlowDown,
    StoreError,
    StoreUnavailable,
    WrongRegion,
)
from kafscale.store.base import ObjectInfo, ObjectPart, Upload
from kafscale.store.s3.requests import ENCRYPTION_HEADER, S3Request

_RANGE = re.compile(r"bytes=(\d*)-(\d+)")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(-?\d+)/(\d+)")  # of an empty object, MinIO sends "0--1/0"

_HTTPS_WANTED = re.compile(rb"(?i)https (server|port)")  # what Go's, nginx' and Apache's servers answer to plain HTTP

_ERROR_BY_CODE: Mapping[str, type[StoreError]] = {
    "NoSuchKey": NotFound,
    "NoSuchBucket": NotFound,
    "NoSuchUpload": NotFound,
    "PreconditionFailed": PreconditionFailed,
    "ConditionalRequestConflict": Conflict,
    "OperationAborted": Conflict,
    "InvalidRange": RangeNotSatisfiable,
    "SlowDown": SlowDown,
    "AccessDenied": AccessDenied,
    "ExpiredToken": AccessDenied,
    "InvalidToken": AccessDenied,
    "TokenRefreshRequired": AccessDenied,
    # These come with 400 although trying again helps: the body was slow, cut off or damaged on its way, and not stored.
    "RequestTimeout": StoreUnavailable,
    "IncompleteBody": StoreUnavailable,
    "BadDigest": StoreUnavailable,
    "XAmzContentSHA256Mismatch": StoreUnavailable,
    "XAmzContentChecksumMismatch": StoreUnavailable,
}
_ERROR_BY_STATUS: Mapping[int, type[StoreError]] = {
    401: AccessDenied,
    403: AccessDenied,
    404: NotFound,
    408: StoreUnavailable,
    409: Conflict,
    412: PreconditionFailed,
    416: RangeNotSatisfiable,
    429: SlowDown,
    501: StoreError,  # trying again would not help: the store can't do it
    503: SlowDown,
}
_WRONG_REGION_CODES = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException"}
)


# What a store without a key service, or without the algorithm, answers to a request that asks for encryption.
_CODES_WITHOUT_ENCRYPTION = frozenset({"NotImplemented", "InvalidArgument", "InvalidEncryptionAlgorithmError"})
_ENCRYPTION_ADVICE = (
    "check --s3-sse, that its key exists and is enabled, that these credentials may use it (kms:GenerateDataKey to "
    "write, kms:Decrypt to read), and that the store has a key service (MinIO: MINIO_KMS_SECRET_KEY, or KES)"
)


@attrs.frozen
class S3Reply:
    """A complete reply. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: Buffer = b""


@attrs.frozen(kw_only=True)
class ListingPage:
    """A page of a listing; `continuation_token` is None on the last."""

    rows: Sequence[ObjectInfo]
    continuation_token: str | None


EXPIRED_CODES = frozenset({"ExpiredToken", "TokenRefreshRequired"})
CLOCK_CODES = frozenset({"RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture"})
_CLOCK_ADVICE = "this machine's clock or the object store's is wrong: set both by NTP; the credentials may be right"


@attrs.frozen(kw_only=True)
class ErrorBody:
    """An error of S3, empty for a reply without a body (HEAD) or with a foreign one (a proxy's)."""

    code: str = ""
    message: str = ""
    region: str = ""
    endpoint: str = ""
    server_time: str = ""

    @property
    def is_expired(self) -> bool:
        return self.code in EXPIRED_CODES

    @property
    def is_about_clocks(self) -> bool:
        """Tell whether the signature's time is too far from the store's."""
        return self.code in CLOCK_CODES

    @property
    def server_seconds(self) -> float | None:
        """The store's time in seconds since the epoch, if it is known."""
        with suppress(ValueError):
            return datetime.datetime.fromisoformat(self.server_time).timestamp()
        return None

    @classmethod
    def of(cls, body: Buffer) -> ErrorBody:
        """Read the XML of an error, if the body is one."""
        try:
            root = ElementTree.fromstring(bytes(body))
        except ElementTree.ParseError:
            return cls()
        fields = {element.tag.rpartition("}")[2]: element.text or "" for element in root.iter()}
        return cls(
            code=fields.get("Code", ""),
            message=fields.get("Message", ""),
            region=fields.get("Region", ""),
            endpoint=fields.get("Endpoint", ""),
            server_time=fields.get("ServerTime", ""),
        )


def check(request: S3Request, reply: S3Reply) -> None:
    """Raise the `StoreError` of a failed reply."""
    if not 200 <= reply.status < 300:
        raise _error(request, reply, ErrorBody.of(reply.body))


def read_part(request: S3Request, reply: S3Reply) -> ObjectPart:
    """Return the requested bytes of a GET. Raises StoreUnavailable if some are missing."""
    check(request, reply)
    etag = reply.headers.get("etag", "")
    if reply.status != 206:
        return ObjectPart(_cut(request, reply.body), len(reply.body), etag)
    match = _CONTENT_RANGE.fullmatch(reply.headers.get("content-range", ""))
    if match is None:
        raise StoreUnavailable(f"{request}: 206 without a Content-Range")
    start, last, size_bytes = map(int, match.groups())
    wanted = _wanted(request, size_bytes)
    if (start, max(last + 1, start), len(reply.body)) != (wanted.start, wanted.stop, len(wanted)):
        raise StoreUnavailable(
            f"{request}: {len(reply.body)} bytes from {start} on instead of {len(wanted)} from {wanted.start} on"
        )
    return ObjectPart(reply.body, size_bytes, etag)


def read_info(key: str, request: S3Request, reply: S3Reply) -> ObjectInfo:
    check(request, reply)
    try:
        modified = email.utils.parsedate_to_datetime(reply.headers["last-modified"])
        size_bytes = int(reply.headers["content-length"])
    except (KeyError, ValueError) as exc:
        raise StoreUnavailable(f"{request}: the reply describes no object: {exc}") from exc
    return ObjectInfo(
        key=key,
        size_bytes=size_bytes,
        etag=reply.headers.get("etag", ""),
        modified_ms=round(modified.timestamp() * 1000),
    )


def read_etag(request: S3Request, reply: S3Reply) -> str:
    """Return the ETag of a PUT. A success without one may be a proxy's, and raises StoreUnavailable."""
    if reply.status == 404 and request.operation == "put_if_match" and _says_no_object(request, reply):
        raise PreconditionFailed(f"{request}: there is no such object")
    check(request, reply)
    etag = reply.headers.get("etag", "")
    if not etag:
        raise StoreUnavailable(f"{request}: {reply.status} without an ETag")
    return etag


def read_listing(request: S3Request, reply: S3Reply, prefix: str) -> ListingPage:
    """Return a page of rows, without the bucket's `prefix` in the keys."""
    check(request, reply)
    root = _xml(request, reply)
    # Some stores leave the namespace out; "{*}" would find both, in twice the time.
    namespace = root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""
    if root.tag != f"{namespace}ListBucketResult":
        raise StoreUnavailable(f"{request}: the reply is not a listing, but {root.tag}")
    is_encoded = root.findtext(f"{namespace}EncodingType") == "url"
    try:
        rows = [
            ObjectInfo(
                key=_key(element.findtext(f"{namespace}Key", ""), is_encoded).removeprefix(prefix),
                size_bytes=int(element.findtext(f"{namespace}Size", "0")),
                etag=element.findtext(f"{namespace}ETag", ""),
                modified_ms=_iso_ms(element.findtext(f"{namespace}LastModified", "")),
            )
            for element in root.iterfind(f"{namespace}Contents")
        ]
    except ValueError as exc:
        raise StoreUnavailable(f"{request}: a row can't be read: {exc}") from exc
    is_truncated = root.findtext(f"{namespace}IsTruncated") == "true"
    token = root.findtext(f"{namespace}NextContinuationToken") if is_truncated else None
    if is_truncated and not token:
        raise StoreError(f"{request}: there is more, and no token to go on with")
    return ListingPage(rows=rows, continuation_token=token)


def check_deletion(request: S3Request, reply: S3Reply) -> None:
    """Raise if an object was not deleted. A missing object is fine."""
    if reply.status == 404 and ErrorBody.of(reply.body).code == "NoSuchKey":
        return
    check(request, reply)
    if request.method != "POST":
        return
    for refused in _xml(request, reply).iterfind("{*}Error"):
        code, key, message = (refused.findtext(f"{{*}}{name}", "") for name in ("Code", "Key", "Message"))
        if code != "NoSuchKey":
            error = _ERROR_BY_CODE.get(code, StoreUnavailable)
            raise error(f"{request}/{key}: {code}: {message}")


def check_created(request: S3Request, reply: S3Reply) -> None:
    """Raise unless the bucket was created or exists."""
    if reply.status != 409 or ErrorBody.of(reply.body).code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
        check(request, reply)


def read_upload(key: str, request: S3Request, reply: S3Reply) -> Upload:
    check(request, reply)
    upload_id = _xml(request, reply).findtext("{*}UploadId")
    if not upload_id:
        raise StoreUnavailable(f"{request}: the reply names no upload")
    return Upload(key, upload_id)


def read_completion(request: S3Request, reply: S3Reply) -> str:
    """Return the object's ETag. The status is sent before the work is done, so an error may come with 200."""
    check(request, reply)
    root = _xml(request, reply)
    if root.tag.rpartition("}")[2] == "Error":
        check(request, attrs.evolve(reply, status=500, body=bytes(reply.body).strip()))
    etag = root.findtext("{*}ETag", "")
    if not etag:
        raise StoreUnavailable(f"{request}: the reply names no ETag")
    return etag


def check_abortion(request: S3Request, reply: S3Reply) -> None:
    """Raise if the upload may still exist."""
    if reply.status != 404 or ErrorBody.of(reply.body).code != "NoSuchUpload":
        check(request, reply)


def _wanted(request: S3Request, size_bytes: int) -> range:
    """Return the requested range of an object of this size."""
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if match is None:
        return range(size_bytes)
    first, last = match.groups()
    if not first:
        return range(max(0, size_bytes - int(last)), size_bytes)
    return range(int(first), max(int(first), min(int(last) + 1, size_bytes)))


def _cut(request: S3Request, body: Buffer) -> Buffer:
    """Return the range of a whole object: a server may ignore Range (RFC 9110)."""
    wanted = _wanted(request, len(body))
    if wanted.start > 0 and wanted.start >= len(body):
        raise RangeNotSatisfiable(f"{request}: it has {len(body)} bytes only")
    return body if len(wanted) == len(body) else memoryview(body)[wanted.start : wanted.stop]


def _error(request: S3Request, reply: S3Reply, body: ErrorBody) -> StoreError:
    what = f"{request}: {reply.status} {body.code}".rstrip() + (f": {body.message}" if body.message else "")
    if reply.status in (301, 307) or body.code in _WRONG_REGION_CODES:
        region = reply.headers.get("x-amz-bucket-region") or body.region
        if region:
            return WrongRegion(f"{what} (the bucket is in region {region})", region)
        if body.code != "AuthorizationHeaderMalformed":
            return WrongRegion(f"{what} (the bucket is at {body.endpoint or 'another endpoint'})")
    if body.is_about_clocks:
        return ClockRefused(f"{what}; {_CLOCK_ADVICE}")
    if _is_of_encryption(request, reply, body):
        return EncryptionRefused(f"{what}; {_ENCRYPTION_ADVICE}")
    if reply.status == 400 and not body.code and _HTTPS_WANTED.search(bytes(reply.body)):
        return StoreUnavailable(f"{what}: what listens there speaks TLS only; write https:// in the endpoint")
    error = _ERROR_BY_CODE.get(body.code) or _ERROR_BY_STATUS.get(reply.status)
    if error is None:
        error = StoreUnavailable if reply.status >= 500 else StoreError
    return error(what)


def _says_no_object(request: S3Request, reply: S3Reply) -> bool:
    """Tell whether a 404 is about the object: S3 answers NoSuchKey if there is nothing to match."""
    body = ErrorBody.of(reply.body)
    return body.code != "NoSuchBucket" and not _is_of_encryption(request, reply, body)


def _is_of_encryption(request: S3Request, reply: S3Reply, body: ErrorBody) -> bool:
    """Tell whether the error is about encryption.

    AWS names its key service in the code, or in the message for a missing right. MinIO answers 404 for a missing key.
    """
    if reply.status >= 500 and reply.status != 501:
        return False
    if body.code.lower().startswith(("kms.", "kms:")) or (body.code == "AccessDenied" and "kms:" in body.message):
        return True
    if ENCRYPTION_HEADER not in request.headers or body.code not in _CODES_WITHOUT_ENCRYPTION:
        return False
    return "encrypt" in body.message.lower() or "kms" in body.message.lower()


def _xml(request: S3Request, reply: S3Reply) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(bytes(reply.body).strip())  # S3 sends blanks while it completes an upload
    except ElementTree.ParseError as exc:
        raise StoreUnavailable(f"{request}: the reply is not XML: {exc}") from exc


def _key(text: str, is_encoded: bool) -> str:
    # `encoding-type=url` is that of forms: a plus sign is a space, and a plus is %2B.
    return unquote(text.replace("+", " ")) if is_encoded else text


def _iso_ms(text: str) -> int:
    # Whole seconds, as a HEAD of the same object tells it: some stores are finer here.
    return int(datetime.datetime.fromisoformat(text).timestamp()) * 1000
