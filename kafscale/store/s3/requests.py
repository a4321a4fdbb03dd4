"""The S3 requests that the store makes, sans-IO: method, URL, headers and body parts.

Shared with readers that block: imports neither trio nor httpx. Replies are read by `kafscale.store.s3.replies`.
Source: the Amazon S3 API reference. URLs are built here, character by character, because a signature covers them as
they are on the wire, and HTTP libraries write a space in a query as `+`, which S3 reads as a plus.
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
from kafscale.store.base import LIST_PAGE_MAX_COUNT
from kafscale.store.paths import check_key
from kafscale.store.s3.sigv4 import EMPTY_SHA256, UNSIGNED_PAYLOAD

DELETE_BATCH_COUNT = 1000  # S3's own maximum


@attrs.frozen(kw_only=True)
class BucketAddress:
    """The address of a bucket. `origin` is scheme and authority; `base_path` the endpoint's path, with `/bucket` in
    path style.

    `prefix` is empty or ends in a slash; the store's keys are below it.
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
        """The address of a bucket at AWS, or at another `endpoint` (scheme://host:port/path).

        Without a choice of `path_style`, an endpoint of one's own gets it (few have a wildcard name in their DNS), and
        AWS does not, but for buckets with a dot in the name, which AWS's wildcard certificate doesn't cover. Raises
        ConfigError.
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
        """Tell whether TLS protects the requests."""
        return self.origin.startswith("https:")

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix} at {self.origin}"


@attrs.frozen(kw_only=True)
class S3Request:
    """One request, ready to be signed and sent.

    `subject` is what it is about, for messages. `idempotent` says whether sending it twice is the same as once, so that
    a request that met a connection which the server was just closing may be sent again.
    """

    operation: str
    method: str
    url: str
    subject: str
    headers: Mapping[str, str]
    parts: Sequence[Buffer] = ()
    idempotent: bool = True


@attrs.frozen(kw_only=True)
class BodyDigest:
    """Length and checksums of a body. Computing them is the costly part of a PUT, and may be done in a thread."""

    length_bytes: int
    crc32c: str
    payload_hash: str

    @classmethod
    def of(cls, parts: Sequence[Buffer], *, sign_payload: bool) -> BodyDigest:
        """Read all parts, once for the CRC and once more for the SHA-256 if the signature is to cover them."""
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


_NO_BODY: Mapping[str, str] = {"x-amz-content-sha256": EMPTY_SHA256}

ENCRYPTION_HEADER = "x-amz-server-side-encryption"


@attrs.frozen
class S3Requests:
    """Builds requests for one bucket. Keys are the store's: relative, without the bucket's prefix.

    `encryption` is what each request that makes an object asks for.
    """

    address: BucketAddress
    encryption: StoreEncryption | None = None

    def get(self, key: str) -> S3Request:
        """The whole object."""
        return self.object_request("get", "GET", key)

    def get_range(self, key: str, start: int, length_bytes: int) -> S3Request:
        """`length_bytes` (at least one: HTTP has no empty range) from `start`."""
        if start < 0 or length_bytes < 1:
            raise ValueError(f"not a range: {length_bytes} bytes from {start}")
        headers = {**_NO_BODY, "range": f"bytes={start}-{start + length_bytes - 1}"}
        return self.object_request("get_range", "GET", key, headers=headers)

    def get_tail(self, key: str, length_bytes: int) -> S3Request:
        """The last `length_bytes` (at least one). An empty object has no tail: S3 answers 416."""
        if length_bytes < 1:
            raise ValueError(f"not a range: the last {length_bytes} bytes")
        return self.object_request("get_tail", "GET", key, headers={**_NO_BODY, "range": f"bytes=-{length_bytes}"})

    def head(self, key: str) -> S3Request:
        """Size, ETag and time of an object."""
        return self.object_request("head", "HEAD", key)

    def put(self, key: str, parts: Sequence[Buffer], digest: BodyDigest) -> S3Request:
        """Write an object, whatever was there."""
        headers = {**body_headers(digest), **self.encryption_headers()}
        return self.object_request("put", "PUT", key, headers=headers, parts=parts)

    def put_if_absent(self, key: str, parts: Sequence[Buffer], digest: BodyDigest) -> S3Request:
        """Write an object unless the key has one."""
        headers = {**body_headers(digest), **self.encryption_headers(), "if-none-match": "*"}
        return attrs.evolve(
            self.object_request("put_if_absent", "PUT", key, headers=headers, parts=parts), idempotent=False
        )

    def put_if_match(self, key: str, parts: Sequence[Buffer], digest: BodyDigest, *, etag: str) -> S3Request:
        """Write an object if the key has one with this ETag."""
        headers = {**body_headers(digest), **self.encryption_headers(), "if-match": etag}
        return attrs.evolve(
            self.object_request("put_if_match", "PUT", key, headers=headers, parts=parts), idempotent=False
        )

    def list_page(self, prefix: str, *, start_after: str = "", continuation_token: str | None = None) -> S3Request:
        """One page of the keys that start with `prefix` and sort after `start_after`."""
        query = {"list-type": "2", "encoding-type": "url", "max-keys": str(LIST_PAGE_MAX_COUNT)}
        query["prefix"] = self.address.prefix + prefix
        if continuation_token is not None:
            query["continuation-token"] = continuation_token
        elif start_after:
            query["start-after"] = self.address.prefix + start_after
        return self._bucket_request("list", "GET", query)

    def delete(self, keys: Sequence[str]) -> list[S3Request]:
        """The requests that delete the objects: one for each thousand keys."""
        for key in keys:
            check_key(self.address.prefix + key)
        batches = [keys[at : at + DELETE_BATCH_COUNT] for at in range(0, len(keys), DELETE_BATCH_COUNT)]
        return [self._delete_many(batch) if len(batch) > 1 else self._delete_one(batch[0]) for batch in batches]

    def head_bucket(self) -> S3Request:
        """Tell whether the bucket is there and ours to use. Its errors have no body: a listing says more."""
        return self._bucket_request("head_bucket", "HEAD", {})

    def create_bucket(self) -> S3Request:
        """Create the bucket in the address's region (us-east-1 is named by saying nothing)."""
        parts: list[Buffer] = []
        if self.address.region != "us-east-1":
            parts.append(
                '<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><LocationConstraint>'
                f"{escape(self.address.region)}</LocationConstraint></CreateBucketConfiguration>".encode()
            )
        headers = body_headers(BodyDigest.of(parts, sign_payload=True))
        return self._bucket_request("create_bucket", "PUT", {}, headers=headers, parts=parts)

    def object_request(
        self,
        operation: str,
        method: str,
        key: str,
        *,
        headers: Mapping[str, str] = _NO_BODY,
        parts: Sequence[Buffer] = (),
    ) -> S3Request:
        """Return a request about one object."""
        name = self.address.prefix + key
        check_key(name)
        return S3Request(
            operation=operation,
            method=method,
            url=f"{self.address.origin}{self.address.base_path}/{quote(name)}",
            subject=f"s3://{self.address.bucket}/{name}",
            headers=headers,
            parts=parts,
        )

    def encryption_headers(self) -> Mapping[str, str]:
        """Return what a request that makes an object, or begins an upload of one, says of its encryption."""
        if self.encryption is None:
            return {}
        headers = {ENCRYPTION_HEADER: str(self.encryption.algorithm)}
        if self.encryption.key:
            headers["x-amz-server-side-encryption-aws-kms-key-id"] = self.encryption.key
        return headers

    def _delete_one(self, key: str) -> S3Request:
        return self.object_request("delete", "DELETE", key)

    def _delete_many(self, keys: Sequence[str]) -> S3Request:
        rows = "".join(f"<Object><Key>{escape(self.address.prefix + key)}</Key></Object>" for key in keys)
        body = (f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{rows}<Quiet>true</Quiet></Delete>').encode()
        headers = body_headers(BodyDigest.of([body], sign_payload=True))
        # The only operation that S3 refuses without a checksum; stores that are not AWS know only the older one.
        headers["content-md5"] = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        return self._bucket_request("delete", "POST", {"delete": ""}, headers=headers, parts=[body])

    def _bucket_request(
        self,
        operation: str,
        method: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] = _NO_BODY,
        parts: Sequence[Buffer] = (),
    ) -> S3Request:
        pairs = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        return S3Request(
            operation=operation,
            method=method,
            url=f"{self.address.origin}{self.address.base_path or '/'}" + (f"?{pairs}" if pairs else ""),
            subject=f"s3://{self.address.bucket}",
            headers=headers,
            parts=parts,
        )


def body_headers(digest: BodyDigest) -> dict[str, str]:
    """Return the headers by which a request with a body describes it."""
    return {
        "content-length": str(digest.length_bytes),
        "x-amz-checksum-crc32c": digest.crc32c,
        "x-amz-content-sha256": digest.payload_hash,
    }
