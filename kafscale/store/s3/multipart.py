"""Multipart uploads in S3, sans-IO: their requests and the reading of their replies.

An upload is begun, gets its parts in any order and any number of times each, and becomes an object when it is
completed, which may be conditional; until then there is no object. Source: the Amazon S3 API reference,
CreateMultipartUpload, UploadPart, CompleteMultipartUpload, AbortMultipartUpload. Imports neither trio nor httpx.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import attrs

from kafscale.buffers import Buffer
from kafscale.errors import StoreUnavailable
from kafscale.store.base import Upload, UploadedPart
from kafscale.store.s3.replies import ErrorBody, S3Reply, check
from kafscale.store.s3.requests import BodyDigest, S3Request, S3Requests, body_headers


@attrs.frozen
class MultipartRequests:
    """Builds the requests for one bucket."""

    requests: S3Requests

    def begin(self, key: str) -> S3Request:
        """Begin an upload whose parts have CRC-32C checksums. The object is encrypted as it says; parts say nothing."""
        described = body_headers(BodyDigest.of([], sign_payload=True))
        headers = {**described, **self.requests.encryption_headers(), "x-amz-checksum-algorithm": "CRC32C"}
        request = self.requests.object_request("begin_upload", "POST", key, headers=headers)
        return attrs.evolve(_with_query(request, {"uploads": ""}), idempotent=False)

    def put_part(self, upload: Upload, number: int, parts: Sequence[Buffer], digest: BodyDigest) -> S3Request:
        """Send a part, in place of the one that has its number already."""
        request = self.requests.object_request("put_part", "PUT", upload.key, headers=body_headers(digest), parts=parts)
        return _with_query(request, {"partNumber": str(number), "uploadId": upload.upload_id})

    def complete(self, upload: Upload, uploaded: Sequence[UploadedPart], *, if_absent: bool) -> S3Request:
        """Make the parts, in order of their numbers, an object."""
        rows = "".join(
            f"<Part><ChecksumCRC32C>{part.crc32c}</ChecksumCRC32C><ETag>{escape(part.etag)}</ETag>"
            f"<PartNumber>{part.number}</PartNumber></Part>"
            for part in sorted(uploaded, key=lambda part: part.number)
        )
        body = (
            f'<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{rows}</CompleteMultipartUpload>'
        ).encode()
        headers = body_headers(BodyDigest.of([body], sign_payload=True))
        # Of the whole object, where it is anything: this one is of the list.
        del headers["x-amz-checksum-crc32c"]
        if if_absent:
            headers["if-none-match"] = "*"
        request = self.requests.object_request("complete_upload", "POST", upload.key, headers=headers, parts=[body])
        return attrs.evolve(_with_query(request, {"uploadId": upload.upload_id}), idempotent=False)

    def abort(self, upload: Upload) -> S3Request:
        """Forget the upload and its parts."""
        request = self.requests.object_request("abort_upload", "DELETE", upload.key)
        return _with_query(request, {"uploadId": upload.upload_id})


def read_upload(key: str, request: S3Request, reply: S3Reply) -> Upload:
    """The upload that was begun."""
    check(request, reply)
    upload_id = _root(request, reply).findtext("{*}UploadId")
    if not upload_id:
        raise StoreUnavailable(f"{request.operation} {request.subject}: the reply names no upload")
    return Upload(key, upload_id)


def read_completion(request: S3Request, reply: S3Reply) -> str:
    """The ETag of the object. The status is sent before the work is done, so an error may come with 200."""
    check(request, reply)
    root = _root(request, reply)
    if root.tag.rpartition("}")[2] == "Error":
        check(request, attrs.evolve(reply, status=500, body=bytes(reply.body).strip()))
    etag = root.findtext("{*}ETag", "")
    if not etag:
        raise StoreUnavailable(f"{request.operation} {request.subject}: the reply names no ETag")
    return etag


def check_abortion(request: S3Request, reply: S3Reply) -> None:
    """Raise if the upload may still be there."""
    if reply.status != 404 or ErrorBody.of(reply.body).code != "NoSuchUpload":
        check(request, reply)


def _with_query(request: S3Request, query: Mapping[str, str]) -> S3Request:
    pairs = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    return attrs.evolve(request, url=f"{request.url}?{pairs}")


def _root(request: S3Request, reply: S3Reply) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(bytes(reply.body).strip())  # which may begin with blanks that were sent to wait
    except ElementTree.ParseError as exc:
        raise StoreUnavailable(f"{request.operation} {request.subject}: the reply is not XML: {exc}") from exc
