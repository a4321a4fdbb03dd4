"""Builds the store's S3 requests, sans-IO: method, URL, headers and body parts.

Blocking readers use it too: imports neither trio nor httpx. URLs are built here, as a signature covers them as they are
sent, and HTTP libraries write a space in a query as `+`, which S3 reads as a plus. Source: the Amazon S3 API reference.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

import attrs
import crc32c

from kafscale.buffers import Buffer
from kafscale.config import StoreEncryption, is_endpoint, split_url
from kafscale.errors import ConfigError
from kafscale.store.base import LIST_PAGE_MAX_COUNT, Upload, UploadedPart
from kafscale.store.paths import check_key
from kafscale.store.s3.sigv4 import EMPTY_SHA256, UNSIGNED_PAYLOAD

DELETE_BATCH_COUNT = 1000  # S3's own maximum


@attrs.frozen(kw_only=True)
class BucketAddress:
    """The address of a bucket. `origin` is scheme and authority; `base_path` the endpoint's path, with the bucket in
    path style.

    `prefix` is empty or ends in a slash.
    """

    bucket: str
    region: str
    origin: str
    base_path: str
    prefix: str = ""

    @classmethod
    def of(
        cls, bucket: str, region: str, *, endpoint: str | None = None, path_style: bool | None = None, prefix: str = ""
    ) -> BucketAddress:
        """Return the address of a bucket at AWS, or at another `endpoint` (scheme://host:port/path).

        `path_style` defaults to True for an own endpoint (few have a wildcard name in their DNS), and at AWS for
        buckets with a dot in the name, which its certificate doesn't cover. Raises ConfigError.
        """
        if path_style is None:
            path_style = endpoint is not None or "." in bucket
        parts = split_url(endpoint or f"https://s3.{region}.amazonaws.com")
        if not is_endpoint(parts):
            raise ConfigError(f"--s3-endpoint {endpoint!r} is not of the form http://HOST:PORT/PATH or https://…")
        host = parts.netloc if path_style else f"{bucket}.{parts.netloc}"
        path = quote(unquote(parts.path.strip("/")))  # as the store encodes it to verify the signature
        stripped = prefix.strip("/")
        return cls(
            bucket=bucket,
            region=region,
            origin=f"{parts.scheme}://{host}",
            base_path=(f"/{path}" if path else "") + (f"/{bucket}" if path_style else ""),
            prefix=f"{stripped}/" if stripped else "",
        )

    @property
    def is_secure(self) -> bool:
        return self.origin.startswith("https:")

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix} at {self.origin}"


@attrs.frozen(kw_only=True)
class S3Request:
    """One request, ready to be signed and sent.

    `subject` is for messages. An `idempotent` request may be sent again after it met a closing connection.
    """

    operation: str
    method: str
    url: str
    subject: str
    headers: Mapping[str, str]
    parts: Sequence[Buffer] = ()
    idempotent: bool = True

    def __str__(self) -> str:
        return f"{self.operation} {self.subject}"


@attrs.frozen(kw_only=True)
class BodyDigest:
    """Length and checksums of a body: the costly part of a PUT, which may be computed in a thread."""

    length_bytes: int
    crc32c: str
    payload_hash: str

    @classmethod
    def of(cls, parts: Sequence[Buffer], *, sign_payload: bool) -> BodyDigest:
        """Read all parts, once for the CRC and once for the SHA-256 if the signature covers them."""
        length_bytes = crc = 0
        sha256 = hashlib.sha256()
        for part in parts:
            length_bytes += len(part)
            crc = crc32c.crc32c(part, crc)
            if sign_payload:
                sha256.update(part)
        return cls(
            length_bytes=length_bytes,
            crc32c=base64.b64encode(crc.to_bytes(4, "big")).decode(),
            payload_hash=sha256.hexdigest() if sign_payload else UNSIGNED_PAYLOAD,
        )


XML_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_NO_QUERY: Mapping[str, str] = {}
_NO_BODY: Mapping[str, str] = {"x-amz-content-sha256": EMPTY_SHA256}

ENCRYPTION_HEADER = "x-amz-server-side-encryption"


@attrs.frozen
class S3Requests:
    """Builds requests for one bucket. Keys don't have the bucket's prefix.

    `encryption` is asked for with each new object.
    """

    address: BucketAddress
    encryption: StoreEncryption | None = None

    def get(self, key: str) -> S3Request:
        return self._request("get", "GET", key)

    def get_range(self, key: str, start: int, length_bytes: int) -> S3Request:
        """Get `length_bytes` (at least one: HTTP has no empty range) from `start`."""
        if start < 0 or length_bytes < 1:
            raise ValueError(f"not a range: {length_bytes} bytes from {start}")
        headers = {**_NO_BODY, "range": f"bytes={start}-{start + length_bytes - 1}"}
        return self._request("get_range", "GET", key, headers=headers)

    def get_tail(self, key: str, length_bytes: int) -> S3Request:
        """Get the last `length_bytes` (at least one). S3 answers 416 for an empty object."""
        if length_bytes < 1:
            raise ValueError(f"not a range: the last {length_bytes} bytes")
        return self._request("get_tail", "GET", key, headers={**_NO_BODY, "range": f"bytes=-{length_bytes}"})

    def head(self, key: str) -> S3Request:
        return self._request("head", "HEAD", key)

    def put(self, key: str, parts: Sequence[Buffer], digest: BodyDigest) -> S3Request:
        return self._put("put", key, parts, digest, {})

    def put_if_absent(self, key: str, parts: Sequence[Buffer], digest: BodyDigest) -> S3Request:
        return self._put("put_if_absent", key, parts, digest, {"if-none-match": "*"})

    def put_if_match(self, key: str, parts: Sequence[Buffer], digest: BodyDigest, *, etag: str) -> S3Request:
        return self._put("put_if_match", key, parts, digest, {"if-match": etag})

    def _put(
        self, operation: str, key: str, parts: Sequence[Buffer], digest: BodyDigest, condition: Mapping[str, str]
    ) -> S3Request:
        headers = {**_body_headers(digest), **self._encryption_headers(), **condition}
        return self._request(operation, "PUT", key, headers=headers, parts=parts, idempotent=not condition)

    def begin_upload(self, key: str) -> S3Request:
        """Begin an upload whose parts have CRC-32C checksums; it determines the object's encryption."""
        described = _body_headers(BodyDigest.of([], sign_payload=True))
        headers = {**described, **self._encryption_headers(), "x-amz-checksum-algorithm": "CRC32C"}
        return self._request("begin_upload", "POST", key, query={"uploads": ""}, headers=headers, idempotent=False)

    def put_part(self, upload: Upload, number: int, parts: Sequence[Buffer], digest: BodyDigest) -> S3Request:
        """Send a part, in place of an earlier one with its number."""
        query = {"partNumber": str(number), "uploadId": upload.upload_id}
        return self._request("put_part", "PUT", upload.key, query=query, headers=_body_headers(digest), parts=parts)

    def complete_upload(self, upload: Upload, uploaded: Sequence[UploadedPart], *, if_absent: bool) -> S3Request:
        """Make the parts, in order of their numbers, an object."""
        rows = "".join(
            f"<Part><ChecksumCRC32C>{part.crc32c}</ChecksumCRC32C><ETag>{escape(part.etag)}</ETag>"
            f"<PartNumber>{part.number}</PartNumber></Part>"
            for part in sorted(uploaded, key=lambda part: part.number)
        )
        body = f'<CompleteMultipartUpload xmlns="{XML_NAMESPACE}">{rows}</CompleteMultipartUpload>'.encode()
        headers = _body_headers(BodyDigest.of([body], sign_payload=True))
        del headers["x-amz-checksum-crc32c"]  # it would be that of the whole object, and this is one of the list
        if if_absent:
            headers["if-none-match"] = "*"
        query = {"uploadId": upload.upload_id}
        return self._request(
            "complete_upload", "POST", upload.key, query=query, headers=headers, parts=[body], idempotent=False
        )

    def abort_upload(self, upload: Upload) -> S3Request:
        return self._request("abort_upload", "DELETE", upload.key, query={"uploadId": upload.upload_id})

    def list_page(self, prefix: str, *, start_after: str = "", continuation_token: str | None = None) -> S3Request:
        """List a page of the keys that start with `prefix` and sort after `start_after`."""
        query = {"list-type": "2", "encoding-type": "url", "max-keys": str(LIST_PAGE_MAX_COUNT)}
        query["prefix"] = self.address.prefix + prefix
        if continuation_token is not None:
            query["continuation-token"] = continuation_token
        elif start_after:
            query["start-after"] = self.address.prefix + start_after
        return self._request("list", "GET", None, query=query)

    def delete(self, keys: Sequence[str]) -> list[S3Request]:
        """Return the requests that delete the objects: one for each thousand keys."""
        for key in keys:
            check_key(self.address.prefix + key)
        batches = [keys[at : at + DELETE_BATCH_COUNT] for at in range(0, len(keys), DELETE_BATCH_COUNT)]
        return [
            self._delete_many(batch) if len(batch) > 1 else self._request("delete", "DELETE", batch[0])
            for batch in batches
        ]

    def create_bucket(self) -> S3Request:
        """Create the bucket in the address's region (us-east-1 is not named)."""
        parts: list[Buffer] = []
        if self.address.region != "us-east-1":
            parts.append(
                f'<CreateBucketConfiguration xmlns="{XML_NAMESPACE}"><LocationConstraint>'
                f"{escape(self.address.region)}</LocationConstraint></CreateBucketConfiguration>".encode()
            )
        headers = _body_headers(BodyDigest.of(parts, sign_payload=True))
        return self._request("create_bucket", "PUT", None, headers=headers, parts=parts)

    def _request(
        self,
        operation: str,
        method: str,
        key: str | None,
        *,
        query: Mapping[str, str] = _NO_QUERY,
        headers: Mapping[str, str] = _NO_BODY,
        parts: Sequence[Buffer] = (),
        idempotent: bool = True,
    ) -> S3Request:
        """Return a request about an object, or without a key about the bucket."""
        path, subject = self.address.base_path, f"s3://{self.address.bucket}"
        if key is not None:
            name = self.address.prefix + key
            check_key(name)
            path, subject = f"{path}/{quote(name)}", f"{subject}/{name}"
        return S3Request(
            operation=operation,
            method=method,
            url=f"{self.address.origin}{path or '/'}{_query(query)}",
            subject=subject,
            headers=headers,
            parts=parts,
            idempotent=idempotent,
        )

    def _encryption_headers(self) -> Mapping[str, str]:
        if self.encryption is None:
            return {}
        headers = {ENCRYPTION_HEADER: str(self.encryption.algorithm)}
        if self.encryption.key:
            headers["x-amz-server-side-encryption-aws-kms-key-id"] = self.encryption.key
        return headers

    def _delete_many(self, keys: Sequence[str]) -> S3Request:
        rows = "".join(f"<Object><Key>{escape(self.address.prefix + key)}</Key></Object>" for key in keys)
        body = f'<Delete xmlns="{XML_NAMESPACE}">{rows}<Quiet>true</Quiet></Delete>'.encode()
        headers = _body_headers(BodyDigest.of([body], sign_payload=True))
        # The only operation that S3 refuses without a checksum; stores that are not AWS know only the older one.
        headers["content-md5"] = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        return self._request("delete", "POST", None, query={"delete": ""}, headers=headers, parts=[body])


def _query(pairs: Mapping[str, str]) -> str:
    return "?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs.items()) if pairs else ""


def _body_headers(digest: BodyDigest) -> dict[str, str]:
    return {
        "content-length": str(digest.length_bytes),
        "x-amz-checksum-crc32c": digest.crc32c,
        "x-amz-content-sha256": digest.payload_hash,
    }
