"""S3 in memory, sans-IO: buckets, signatures and conditions of the stand-in server.

Like S3, it refuses a wrong signature, payload hash or checksum. Source: the Amazon S3 API reference.
"""

from __future__ import annotations

import base64
import bisect
import calendar
import email.utils
import hashlib
import itertools
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import parse_qsl, quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import attrs
import crc32c

from kafscale.store.s3.sigv4 import UNSIGNED_PAYLOAD, S3Credentials, Signable, SigningScope, signature

Body = bytes | bytearray | memoryview

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, ?"
    r"SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})"
)
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_CHECKSUMS: Mapping[str, Callable[[Body], bytes]] = {
    "content-md5": lambda body: hashlib.md5(body, usedforsecurity=False).digest(),
    "x-amz-checksum-crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    "x-amz-checksum-crc32c": lambda body: crc32c.crc32c(body).to_bytes(4, "big"),
}
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


@attrs.frozen(kw_only=True)
class S3Call:
    """A request. Header names are in lower case; `operation` is S3's name, such as PutObject."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: Body
    operation: str
    bucket: str
    key: str
    query: Mapping[str, str]

    @classmethod
    def of(
        cls,
        method: str,
        target: str,
        headers: Mapping[str, str],
        *,
        body: Body,
        domain: str = "",
        base_path: str = "",
    ) -> S3Call:
        """Read bucket and key from the path below `base_path` or, for hosts below `domain`, from the host's name."""
        path, _, query = target.partition("?")
        host = headers.get("host", "").partition(":")[0]
        is_below = f"{unquote(path)}/".startswith(f"{base_path}/")
        names = unquote(path).removeprefix(base_path).removeprefix("/")
        if domain and host.endswith(f".{domain}"):
            bucket, key = host.removesuffix(f".{domain}"), names
        else:
            bucket, _, key = names.partition("/")
        parameters = dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))
        return cls(
            method=method,
            target=target,
            headers=headers,
            body=body,
            operation=_operation(method, key, parameters) if is_below else "Unknown",
            bucket=bucket,
            key=key,
            query=parameters,
        )


@attrs.frozen(kw_only=True)
class S3Answer:
    """A reply. `content_length_bytes` differs from the body's length for HEAD only."""

    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: Body = b""

    @classmethod
    def error(cls, status: int, code: str, message: str = "", **fields: str) -> S3Answer:
        more = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
        text = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message>{more}</Error>"
        return cls(status=status, headers={"content-type": "application/xml"}, body=_XML_HEAD + text.encode())

    @classmethod
    def xml(cls, text: str) -> S3Answer:
        return cls(headers={"content-type": "application/xml"}, body=_XML_HEAD + text.encode())


_XML_HEAD = b'<?xml version="1.0" encoding="UTF-8"?>\n'


class S3Refusal(Exception):
    def __init__(self, answer: S3Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


@attrs.frozen(kw_only=True)
class StoredObject:
    """An object. Its ETag is a CRC and the length; with a key of the key service it differs for each write, as in S3.

    `encryption` is the requested one: empty, `AES256` or `aws:kms:KEY`.
    """

    data: Body
    etag: str
    modified_seconds: float
    encryption: str = ""


@attrs.define(kw_only=True)
class PendingUpload:
    bucket: str
    key: str
    checksum_algorithm: str
    encryption: str = ""
    parts: dict[int, StoredObject] = attrs.field(factory=dict)


@attrs.define(kw_only=True)
class S3Service:
    """The buckets of a region.

    `credentials` are by access key id. Hosts below `domain` are bucket names; `base_path` is the path before a bucket's
    name, as at a gateway. `kms_keys` are the names of the key service's keys; with None encryption is refused, as by
    MinIO.
    """

    credentials: dict[str, S3Credentials]
    region: str = "us-east-1"
    clock: Callable[[], float] = time.time
    max_skew_seconds: float = 900.0
    domain: str = ""
    base_path: str = ""
    honours_conditions: bool = True
    page_count: int = 1000
    least_part_bytes: int = 5 * 1024 * 1024
    kms_keys: frozenset[str] | None = None
    buckets: dict[str, dict[str, StoredObject]] = attrs.field(factory=dict)
    uploads: dict[str, PendingUpload] = attrs.field(factory=dict)
    _sorted: dict[str, list[str]] = attrs.field(factory=dict, init=False)
    _upload_ids: Iterator[int] = attrs.field(factory=lambda: itertools.count(1), init=False)
    _encrypted_numbers: Iterator[int] = attrs.field(factory=lambda: itertools.count(1), init=False)

    def fill(self, bucket: str, contents: Mapping[str, bytes]) -> None:
        self.buckets[bucket] = {key: self._stored(data) for key, data in contents.items()}

    def handle(self, call: S3Call) -> S3Answer:
        """Perform the call if its signature and checksums are correct."""
        try:
            self._authenticate(call)
            _check_body(call)
            if call.method not in ("GET", "HEAD"):
                self._sorted.pop(call.bucket, None)
            return _OPERATIONS[call.operation](self, call)
        except S3Refusal as refusal:
            return refusal.answer

    def create_bucket(self, call: S3Call) -> S3Answer:
        asked = "us-east-1"
        if call.body:
            asked = ElementTree.fromstring(bytes(call.body)).findtext("{*}LocationConstraint") or asked
        if asked != self.region:
            raise _refuse(400, "IllegalLocationConstraintException", f"this is {self.region}, not {asked}")
        if call.bucket in self.buckets:
            raise _refuse(409, "BucketAlreadyOwnedByYou")
        self.buckets[call.bucket] = {}
        return S3Answer(headers={"location": f"/{call.bucket}"})

    def head_bucket(self, call: S3Call) -> S3Answer:
        self._bucket(call)
        return S3Answer(headers={"x-amz-bucket-region": self.region})

    def get_object(self, call: S3Call) -> S3Answer:
        found = self._bucket(call).get(call.key)
        if found is None:
            raise _refuse(404, "NoSuchKey", "The specified key does not exist.", Key=call.key)
        headers = {
            "etag": found.etag,
            "last-modified": email.utils.formatdate(found.modified_seconds, usegmt=True),
            "accept-ranges": "bytes",
        }
        size = len(found.data)
        wanted = _range(call.headers.get("range", ""), size)
        if wanted is None:
            return S3Answer(headers=headers, body=found.data)
        headers["content-range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{size}"
        return S3Answer(status=206, headers=headers, body=memoryview(found.data)[wanted.start : wanted.stop])

    def put_object(self, call: S3Call) -> S3Answer:
        bucket = self._bucket(call)
        if self.honours_conditions:
            _check_conditions(call, bucket.get(call.key))
        bucket[call.key] = self._stored(call.body, encryption=self._encryption(call))
        return S3Answer(headers={"etag": bucket[call.key].etag})

    def create_upload(self, call: S3Call) -> S3Answer:
        self._bucket(call)
        algorithm = call.headers.get("x-amz-checksum-algorithm", "")
        upload_id = f"upload+{next(self._upload_ids)}/of=mine"  # opaque, so it may hold anything
        self.uploads[upload_id] = PendingUpload(
            bucket=call.bucket, key=call.key, checksum_algorithm=algorithm, encryption=self._encryption(call)
        )
        return S3Answer.xml(
            f"<InitiateMultipartUploadResult {_NAMESPACE}><UploadId>{upload_id}</UploadId>"
            "</InitiateMultipartUploadResult>"
        )

    def upload_part(self, call: S3Call) -> S3Answer:
        upload = self._upload(call)
        number = int(call.query["partNumber"])
        if not 1 <= number <= 10_000:
            raise _refuse(400, "InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive")
        if upload.checksum_algorithm and f"x-amz-checksum-{upload.checksum_algorithm.lower()}" not in call.headers:
            raise _refuse(400, "InvalidRequest", "the checksum that the upload was begun with is missing")
        upload.parts[number] = self._stored(call.body)
        return S3Answer(headers={"etag": upload.parts[number].etag})

    def complete_upload(self, call: S3Call) -> S3Answer:
        """CompleteMultipartUpload, under If-None-Match. If the condition fails, the upload stays."""
        upload = self._upload(call)
        bucket = self._bucket(call)
        if self.honours_conditions:
            _check_conditions(call, bucket.get(call.key))
        rows = ElementTree.fromstring(bytes(call.body)).findall("{*}Part")
        numbers = [int(row.findtext("{*}PartNumber", "0")) for row in rows]
        if not numbers or numbers != sorted(set(numbers)):
            raise _refuse(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
        for number, row in zip(numbers, rows, strict=True):
            _check_part(upload, row)
            if number != numbers[-1] and len(upload.parts[number].data) < self.least_part_bytes:
                raise _refuse(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size")
        data = b"".join(upload.parts[number].data for number in numbers)
        bucket[call.key] = attrs.evolve(
            self._stored(data, encryption=upload.encryption), etag=f'"{crc32c.crc32c(data):08x}-{len(numbers)}"'
        )
        del self.uploads[call.query["uploadId"]]
        etag = escape(bucket[call.key].etag)
        return S3Answer.xml(
            f"<CompleteMultipartUploadResult {_NAMESPACE}><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        )

    def abort_upload(self, call: S3Call) -> S3Answer:
        self._upload(call)
        del self.uploads[call.query["uploadId"]]
        return S3Answer(status=204)

    def delete_object(self, call: S3Call) -> S3Answer:
        self._bucket(call).pop(call.key, None)
        return S3Answer(status=204)

    def delete_objects(self, call: S3Call) -> S3Answer:
        bucket = self._bucket(call)
        if not _CHECKSUMS.keys() & call.headers.keys():
            raise _refuse(400, "InvalidRequest", "Missing required header for this request: Content-MD5")
        keys = [element.text or "" for element in ElementTree.fromstring(bytes(call.body)).iterfind("{*}Object/{*}Key")]
        if not 1 <= len(keys) <= 1000:
            raise _refuse(400, "MalformedXML")
        for key in keys:
            bucket.pop(key, None)
        return S3Answer.xml(f"<DeleteResult {_NAMESPACE}/>")

    def list_objects(self, call: S3Call) -> S3Answer:
        bucket = self._bucket(call)
        query = call.query
        prefix = query.get("prefix", "")
        after = query.get("continuation-token", query.get("start-after", ""))
        keys = self._sorted_keys(call.bucket)
        start = max(bisect.bisect_left(keys, prefix), bisect.bisect_right(keys, after))
        count = min(self.page_count, int(query.get("max-keys", "1000")))
        found = list(itertools.takewhile(lambda key: key.startswith(prefix), keys[start : start + count + 1]))
        page, is_truncated = found[:count], len(found) > count
        rows = "".join(_row(key, bucket[key], query.get("encoding-type") == "url") for key in page)
        encoding = "<EncodingType>url</EncodingType>" if query.get("encoding-type") == "url" else ""
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if is_truncated else ""
        return S3Answer.xml(
            f"<ListBucketResult {_NAMESPACE}><Name>{call.bucket}</Name><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>{encoding}{token}{rows}</ListBucketResult>"
        )

    def _sorted_keys(self, name: str) -> list[str]:
        """Return the sorted keys, cached for the pages of a listing."""
        bucket = self.buckets[name]
        keys = self._sorted.get(name)
        if keys is None or len(keys) != len(bucket):
            keys = self._sorted[name] = sorted(bucket)
        return keys

    def _bucket(self, call: S3Call) -> dict[str, StoredObject]:
        bucket = self.buckets.get(call.bucket)
        if bucket is None:
            raise _refuse(404, "NoSuchBucket", "The specified bucket does not exist", BucketName=call.bucket)
        return bucket

    def _upload(self, call: S3Call) -> PendingUpload:
        upload = self.uploads.get(call.query["uploadId"])
        if upload is None or (upload.bucket, upload.key) != (call.bucket, call.key):
            raise _refuse(404, "NoSuchUpload", "The specified upload does not exist.")
        return upload

    def _stored(self, data: Body, *, encryption: str = "") -> StoredObject:
        etag = f'"{crc32c.crc32c(data):08x}{len(data):024x}"'
        if encryption.startswith("aws:kms"):
            etag = f'"{next(self._encrypted_numbers):032x}"'
        return StoredObject(data=data, etag=etag, modified_seconds=self.clock(), encryption=encryption)

    def _encryption(self, call: S3Call) -> str:
        algorithm = call.headers.get("x-amz-server-side-encryption", "")
        key = call.headers.get("x-amz-server-side-encryption-aws-kms-key-id", "")
        if algorithm not in ("", "AES256", "aws:kms") or (key and algorithm != "aws:kms"):
            raise _refuse(400, "InvalidArgument", "The encryption method is not supported")
        if algorithm and self.kms_keys is None:
            raise _refuse(501, "NotImplemented", "Server side encryption specified but KMS is not configured")
        if key and key not in (self.kms_keys or ()):
            raise _refuse(404, "kms:KeyNotFound", "key with given key ID does not exist")
        return f"{algorithm}:{key}" if key else algorithm

    def _authenticate(self, call: S3Call) -> None:
        match = _AUTHORIZATION.fullmatch(call.headers.get("authorization", ""))
        if match is None:
            raise _refuse(403, "AccessDenied", "the request is not signed")
        access_key_id, date, region, names, given = match.groups()
        stamp = call.headers.get("x-amz-date", "")
        credentials = self.credentials.get(access_key_id)
        if credentials is None:
            raise _refuse(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist.")
        if region != self.region:
            message = f"the region '{region}' is wrong; expecting '{self.region}'"
            raise _refuse(400, "AuthorizationHeaderMalformed", message, Region=self.region)
        if abs(_stamp_seconds(stamp) - self.clock()) > self.max_skew_seconds or not stamp.startswith(date):
            raise _refuse(403, "RequestTimeTooSkewed", "The difference between the request time and ours is too large.")
        if credentials.session_token != call.headers.get("x-amz-security-token"):
            raise _refuse(400, "InvalidToken", "The provided token is malformed or otherwise invalid.")
        if (credentials.expires_at_seconds or self.clock() + 1) <= self.clock():
            raise _refuse(400, "ExpiredToken", "The provided token has expired.")
        signed = {name: call.headers.get(name, "") for name in names.split(";")}
        unsigned = [name for name in call.headers if name.startswith("x-amz-") and name not in signed]
        signable = Signable(
            method=call.method,
            target=call.target,
            headers=signed,
            payload_hash=call.headers.get("x-amz-content-sha256", ""),
        )
        expected = signature(signable, SigningScope(stamp=stamp, region=region), credentials.secret_access_key)
        if expected != given or unsigned or "host" not in signed:
            raise _refuse(403, "SignatureDoesNotMatch", f"the signature does not match; not signed: {unsigned}")


_OPERATIONS: Mapping[str, Callable[[S3Service, S3Call], S3Answer]] = {
    "CreateBucket": S3Service.create_bucket,
    "HeadBucket": S3Service.head_bucket,
    "GetObject": S3Service.get_object,
    "HeadObject": S3Service.get_object,
    "PutObject": S3Service.put_object,
    "CreateMultipartUpload": S3Service.create_upload,
    "UploadPart": S3Service.upload_part,
    "CompleteMultipartUpload": S3Service.complete_upload,
    "AbortMultipartUpload": S3Service.abort_upload,
    "DeleteObject": S3Service.delete_object,
    "DeleteObjects": S3Service.delete_objects,
    "ListObjectsV2": S3Service.list_objects,
    "Unknown": lambda service, call: S3Answer.error(501, "NotImplemented", f"{call.method} {call.target}"),
}


_OBJECT_OPERATIONS: Mapping[tuple[str, frozenset[str]], str] = {
    ("GET", frozenset()): "GetObject",
    ("HEAD", frozenset()): "HeadObject",
    ("PUT", frozenset()): "PutObject",
    ("DELETE", frozenset()): "DeleteObject",
    ("POST", frozenset({"uploads"})): "CreateMultipartUpload",
    ("PUT", frozenset({"partNumber", "uploadId"})): "UploadPart",
    ("POST", frozenset({"uploadId"})): "CompleteMultipartUpload",
    ("DELETE", frozenset({"uploadId"})): "AbortMultipartUpload",
}


def _operation(method: str, key: str, query: Mapping[str, str]) -> str:
    if key:
        return _OBJECT_OPERATIONS.get((method, frozenset(query)), "Unknown")
    if method == "GET" and query.get("list-type") == "2":
        return "ListObjectsV2"
    if method == "POST" and "delete" in query:
        return "DeleteObjects"
    return {"PUT": "CreateBucket", "HEAD": "HeadBucket"}.get(method, "Unknown")


def _refuse(status: int, code: str, message: str = "", **fields: str) -> S3Refusal:
    return S3Refusal(S3Answer.error(status, code, message, **fields))


def _check_body(call: S3Call) -> None:
    payload_hash = call.headers.get("x-amz-content-sha256")
    if payload_hash != UNSIGNED_PAYLOAD and payload_hash != hashlib.sha256(call.body).hexdigest():
        raise _refuse(400, "XAmzContentSHA256Mismatch", "the payload's SHA-256 is another")
    for header, checksum in _CHECKSUMS.items():
        given = call.headers.get(header)
        if given is not None and given != base64.b64encode(checksum(call.body)).decode():
            raise _refuse(400, "BadDigest", f"The {header} you specified did not match the calculated checksum.")


def _check_part(upload: PendingUpload, row: ElementTree.Element) -> None:
    part = upload.parts.get(int(row.findtext("{*}PartNumber", "0")))
    checksum = row.findtext("{*}ChecksumCRC32C")
    if part is None or part.etag != row.findtext("{*}ETag"):
        raise _refuse(400, "InvalidPart", "One or more of the specified parts could not be found.")
    if upload.checksum_algorithm == "CRC32C":
        actual = base64.b64encode(_CHECKSUMS["x-amz-checksum-crc32c"](part.data)).decode()
        if checksum != actual:
            raise _refuse(400, "InvalidPart", "a part's checksum is missing or another")


def _check_conditions(call: S3Call, found: StoredObject | None) -> None:
    if call.headers.get("if-none-match") == "*" and found is not None:
        raise _refuse(412, "PreconditionFailed", Condition="If-None-Match")
    wanted = call.headers.get("if-match")
    if wanted is not None and found is None:
        raise _refuse(404, "NoSuchKey", Key=call.key)
    if wanted is not None and found is not None and wanted != found.etag:
        raise _refuse(412, "PreconditionFailed", Condition="If-Match")


def _range(header: str, size: int) -> range | None:
    """Return the range of a Range header, or None for all bytes. Like S3, ignore an invalid one."""
    match = _RANGE.fullmatch(header)
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        wanted = range(max(0, size - int(last)), size)
    else:
        wanted = range(int(first), min(size, int(last) + 1) if last else size)
    if not wanted:
        raise _refuse(416, "InvalidRange", "The requested range is not satisfiable", ActualObjectSize=str(size))
    return wanted


def _row(key: str, found: StoredObject, is_encoded: bool) -> str:
    name = quote(key, safe="/").replace("%20", "+") if is_encoded else escape(key)
    modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.modified_seconds))
    return (
        f"<Contents><Key>{name}</Key><LastModified>{modified}</LastModified>"
        f"<ETag>{escape(found.etag)}</ETag><Size>{len(found.data)}</Size></Contents>"
    )


def _stamp_seconds(stamp: str) -> int:
    try:
        return calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        raise _refuse(403, "AccessDenied", "x-amz-date is missing or malformed") from None
