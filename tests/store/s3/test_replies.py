import pytest

from kafscale.config import StoreEncryption
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
from kafscale.store.s3.replies import (
    S3Reply,
    check,
    check_created,
    check_deletion,
    read_etag,
    read_info,
    read_listing,
    read_part,
)
from kafscale.store.s3.requests import BodyDigest, BucketAddress, S3Requests

REQUESTS = S3Requests(BucketAddress.of("bucket", "us-east-1", prefix="p"))
GET = REQUESTS.get("key")
EMPTY = BodyDigest.of([], sign_payload=True)


def error(status, code, message="", **fields):
    more = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
    body = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>'
    return S3Reply(status, {}, body.encode())


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (error(404, "NoSuchKey"), NotFound),
        (error(404, "NoSuchBucket"), NotFound),
        (error(412, "PreconditionFailed"), PreconditionFailed),
        (error(409, "ConditionalRequestConflict"), Conflict),
        (error(409, "OperationAborted"), Conflict),
        (error(416, "InvalidRange"), RangeNotSatisfiable),
        (error(403, "AccessDenied"), AccessDenied),
        (error(403, "SignatureDoesNotMatch"), AccessDenied),
        (error(403, "RequestTimeTooSkewed"), ClockRefused),
        (error(400, "ExpiredToken"), AccessDenied),
        (error(401, "Unauthorized"), AccessDenied),
        (error(503, "SlowDown"), SlowDown),
        (error(429, "TooManyRequests"), SlowDown),
        (error(500, "InternalError"), StoreUnavailable),
        (error(400, "RequestTimeout"), StoreUnavailable),
        (error(400, "BadDigest"), StoreUnavailable),
        (S3Reply(502, {}, b"<html>Bad Gateway"), StoreUnavailable),
        (S3Reply(404, {}), NotFound),
        (S3Reply(400, {}, b"Client sent an HTTP request to an HTTPS server.\n"), StoreUnavailable),
        (S3Reply(400, {}, b"<h1>400</h1>The plain HTTP request was sent to HTTPS port"), StoreUnavailable),
        (S3Reply(403, {}), AccessDenied),
    ],
)
def test_each_refusal_is_its_error_and_names_the_object(reply, expected):
    with pytest.raises(expected, match=f"get s3://bucket/p/key: {reply.status}") as caught:
        check(GET, reply)
    assert type(caught.value) is expected


@pytest.mark.parametrize("reply", [error(400, "InvalidArgument", "why"), error(501, "NotImplemented", "why")])
def test_an_error_that_a_retry_cannot_fix_is_a_plain_store_error(reply):
    with pytest.raises(StoreError, match="why") as caught:
        check(GET, reply)
    assert type(caught.value) is StoreError


ENCRYPTED = S3Requests(REQUESTS.address, StoreEncryption("aws:kms", "key"))
WITHOUT_KMS = "Server side encryption specified but KMS is not configured"


@pytest.mark.parametrize(
    "reply",
    [
        error(404, "kms:KeyNotFound", "key with given key ID does not exist"),
        error(400, "KMS.NotFoundException", "Invalid arn"),
        error(400, "KMS.DisabledException", "it is disabled"),
        error(403, "AccessDenied", "User: u is not authorized to perform: kms:GenerateDataKey on resource: r"),
        error(501, "NotImplemented", WITHOUT_KMS),
        error(400, "InvalidArgument", "The encryption method is not supported"),
    ],
)
def test_an_unusable_encryption_key_is_not_reported_as_a_missing_object(reply):
    """Taken for the object's, MinIO's 404 would be a conditional write that lost."""
    requests = [
        ENCRYPTED.put("key", [], EMPTY),
        ENCRYPTED.put_if_match("key", [], EMPTY, etag="e"),
    ]
    for request in requests:
        with pytest.raises(EncryptionRefused, match="check --s3-sse"):
            read_etag(request, reply)


def test_a_read_without_permission_for_the_key_raises_encryption_refused():
    with pytest.raises(EncryptionRefused, match=r"kms:Decrypt to read"):
        read_part(GET, error(403, "AccessDenied", "not authorized to perform: kms:Decrypt on resource: r"))
    with pytest.raises(EncryptionRefused):
        read_part(GET, error(404, "kms:KeyNotFound"))


@pytest.mark.parametrize(
    ("request_", "reply", "expected"),
    [
        (ENCRYPTED.put("key", [], EMPTY), error(503, "kms:NotReachable", "try again"), SlowDown),
        (ENCRYPTED.put("key", [], EMPTY), error(501, "NotImplemented", "If-None-Match"), StoreError),
        (ENCRYPTED.put("key", [], EMPTY), error(403, "AccessDenied", "Access Denied."), AccessDenied),
        (REQUESTS.put("key", [], EMPTY), error(501, "NotImplemented", WITHOUT_KMS), StoreError),
    ],
)
def test_errors_unrelated_to_encryption_keep_their_type(request_, reply, expected):
    with pytest.raises(expected) as caught:
        read_etag(request_, reply)
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("reply", "region", "hint"),
    [
        (error(400, "AuthorizationHeaderMalformed", "wrong", Region="eu-west-1"), "eu-west-1", "region eu-west-1"),
        (S3Reply(301, {"x-amz-bucket-region": "eu-west-2"}), "eu-west-2", "region eu-west-2"),
        (error(301, "PermanentRedirect", Endpoint="b.s3.example"), None, "b.s3.example"),
        (S3Reply(307, {}), None, "another endpoint"),
        (error(400, "IllegalLocationConstraintException", "this is x"), None, "this is x"),
    ],
)
def test_a_wrong_region_names_the_right_one(reply, region, hint):
    with pytest.raises(WrongRegion, match=hint) as caught:
        check(GET, reply)
    assert caught.value.region == region


def test_other_malformed_authorization_headers_are_not_a_wrong_region():
    with pytest.raises(StoreError) as caught:
        check(GET, error(400, "AuthorizationHeaderMalformed", "no credential"))
    assert type(caught.value) is StoreError


def test_a_part_tells_the_size_of_the_whole():
    reply = S3Reply(206, {"content-range": "bytes 2-4/10", "etag": '"e"'}, b"234")
    part = read_part(REQUESTS.get_range("key", 2, 3), reply)
    assert (part.data, part.object_size_bytes, part.etag) == (b"234", 10, '"e"')
    with pytest.raises(StoreUnavailable, match="Content-Range"):
        read_part(REQUESTS.get_range("key", 2, 3), S3Reply(206, {}, b"234"))


@pytest.mark.parametrize(
    ("told", "body"),
    [("2-4/10", b"23"), ("2-3/10", b"23"), ("3-5/10", b"345"), ("2-5/10", b"2345"), ("2-4/10", b"")],
)
def test_a_part_of_the_wrong_range_raises_a_retriable_error_and_is_not_damage(told, body):
    with pytest.raises(StoreUnavailable, match="instead of 3 from 2 on"):
        read_part(REQUESTS.get_range("key", 2, 3), S3Reply(206, {"content-range": f"bytes {told}"}, body))


def test_a_part_ends_where_the_object_does():
    end = S3Reply(206, {"content-range": "bytes 8-9/10"}, b"89")
    assert read_part(REQUESTS.get_range("key", 8, 30), end).data == b"89"
    assert read_part(REQUESTS.get_tail("key", 2), end).data == b"89"
    with pytest.raises(StoreUnavailable, match="2 bytes from 8 on instead of 3 from 7 on"):
        read_part(REQUESTS.get_tail("key", 3), end)
    empty = S3Reply(206, {"content-range": "bytes 0--1/0"})
    assert read_part(REQUESTS.get_tail("key", 3), empty).object_size_bytes == 0


def test_a_server_that_ignores_the_range_does_not_mislead():
    whole = S3Reply(200, {"etag": '"e"'}, b"0123456789")
    assert bytes(read_part(REQUESTS.get_range("key", 2, 3), whole).data) == b"234"
    assert bytes(read_part(REQUESTS.get_range("key", 8, 30), whole).data) == b"89"
    assert bytes(read_part(REQUESTS.get_tail("key", 4), whole).data) == b"6789"
    assert bytes(read_part(REQUESTS.get_tail("key", 40), whole).data) == b"0123456789"
    with pytest.raises(RangeNotSatisfiable):
        read_part(REQUESTS.get_range("key", 10, 1), whole)


def test_a_head_is_read_from_its_headers():
    headers = {"content-length": "7", "etag": '"e"', "last-modified": "Fri, 15 Jan 2027 08:00:00 GMT"}
    info = read_info("key", REQUESTS.head("key"), S3Reply(200, headers))
    assert (info.key, info.size_bytes, info.etag, info.modified_ms) == ("key", 7, '"e"', 1_800_000_000_000)


def test_a_missing_object_matches_no_etag():
    request = REQUESTS.put_if_match("key", [], EMPTY, etag='"e"')
    with pytest.raises(PreconditionFailed):
        read_etag(request, error(404, "NoSuchKey"))
    with pytest.raises(NotFound):
        read_etag(request, error(404, "NoSuchBucket"))
    with pytest.raises(NotFound):
        read_etag(REQUESTS.put("key", [], EMPTY), error(404, "NoSuchBucket"))


@pytest.mark.parametrize("namespace", ["", ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'])
def test_a_listing_is_read_with_and_without_a_namespace(namespace):
    body = f"""<ListBucketResult{namespace}><IsTruncated>true</IsTruncated><EncodingType>url</EncodingType>
        <NextContinuationToken>t=</NextContinuationToken>
        <Contents><Key>p/a+b%2Bc%26</Key><LastModified>2027-01-15T08:00:00.999Z</LastModified>
        <ETag>&quot;e&quot;</ETag><Size>7</Size></Contents></ListBucketResult>"""
    listing = read_listing(REQUESTS.list_page(""), S3Reply(200, {}, body.encode()), "p/")
    [row] = listing.rows
    assert (row.key, row.size_bytes, row.etag, row.modified_ms) == ("a b+c&", 7, '"e"', 1_800_000_000_000)
    assert listing.continuation_token == "t="


def test_the_last_page_has_no_token_and_plain_keys_are_left_alone():
    body = b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>p/a+b%41</Key><Size>0</Size>"
    body += b"<LastModified>2027-01-15T08:00:00Z</LastModified></Contents></ListBucketResult>"
    listing = read_listing(REQUESTS.list_page(""), S3Reply(200, {}, body), "p/")
    assert listing.rows[0].key == "a+b%41"
    assert listing.continuation_token is None


def test_a_truncated_listing_raises_store_unavailable():
    with pytest.raises(StoreUnavailable, match="not XML"):
        read_listing(REQUESTS.list_page(""), S3Reply(200, {}, b"<ListBucketResult><Con"), "p/")


@pytest.mark.parametrize("body", ["<html><body>back soon</body></html>", "<ListAllMyBucketsResult/>"])
def test_a_page_that_is_not_a_listing_is_not_taken_for_an_empty_bucket(body):
    """A start took the bucket for empty."""
    with pytest.raises(StoreUnavailable, match="not a listing"):
        read_listing(REQUESTS.list_page(""), S3Reply(200, {}, body.encode()), "p/")


def test_a_listing_that_does_not_tell_how_to_go_on_is_not_taken_for_the_whole():
    """Of a store that knows the first version of listings only, objects behind the first thousand were not seen."""
    body = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextMarker>k</NextMarker></ListBucketResult>"
    with pytest.raises(StoreError, match="there is more"):
        read_listing(REQUESTS.list_page(""), S3Reply(200, {}, body), "p/")


@pytest.mark.parametrize("row", ["<Size>7</Size>", "<Size>x</Size><LastModified>2027-01-15T08:00:00Z</LastModified>"])
def test_a_row_that_is_not_to_be_read_is_a_failure_of_the_store(row):
    """It was a ValueError, which ends the broker."""
    body = f"<ListBucketResult><Contents><Key>p/k</Key>{row}</Contents></ListBucketResult>"
    with pytest.raises(StoreUnavailable, match="can't be read"):
        read_listing(REQUESTS.list_page(""), S3Reply(200, {}, body.encode()), "p/")


@pytest.mark.parametrize("headers", [{}, {"content-length": "7"}, {"content-length": "7", "last-modified": "soon"}])
def test_a_head_without_size_or_time_is_a_failure_of_the_store(headers):
    """It was a KeyError, which ends the broker."""
    with pytest.raises(StoreUnavailable, match="describes no object"):
        read_info("key", REQUESTS.head("key"), S3Reply(200, headers))


def test_a_write_answered_with_200_but_no_etag_has_not_succeeded():
    """Whatever answered in the store's place, as a proxy with a page of its own, had records acknowledged."""
    with pytest.raises(StoreUnavailable, match="200 without an ETag"):
        read_etag(REQUESTS.put_if_absent("key", [], EMPTY), S3Reply(200, {}, b"<html>back soon</html>"))
    assert read_etag(REQUESTS.put_if_absent("key", [], EMPTY), S3Reply(200, {"etag": '"e"'})) == '"e"'


def test_a_deletion_tolerates_a_missing_object_and_no_other_error():
    [one] = REQUESTS.delete(["a"])
    [many] = REQUESTS.delete(["a", "b"])
    check_deletion(one, S3Reply(204, {}))
    check_deletion(one, error(404, "NoSuchKey"))
    check_deletion(many, S3Reply(200, {}, b"<DeleteResult/>"))
    check_deletion(many, S3Reply(200, {}, b"<DeleteResult><Error><Code>NoSuchKey</Code></Error></DeleteResult>"))
    for code, expected in (("AccessDenied", AccessDenied), ("InternalError", StoreUnavailable), ("SlowDown", SlowDown)):
        body = f'<DeleteResult xmlns="x"><Error><Key>b</Key><Code>{code}</Code></Error></DeleteResult>'
        with pytest.raises(expected, match="bucket/b"):
            check_deletion(many, S3Reply(200, {}, body.encode()))
    with pytest.raises(NotFound):
        check_deletion(one, error(404, "NoSuchBucket"))


def test_a_bucket_that_exists_is_created_enough():
    request = REQUESTS.create_bucket()
    check_created(request, S3Reply(200, {}))
    check_created(request, error(409, "BucketAlreadyOwnedByYou"))
    check_created(request, error(409, "BucketAlreadyExists"))
    with pytest.raises(Conflict):
        check_created(request, error(409, "OperationAborted"))
