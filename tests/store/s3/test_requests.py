import subprocess
import sys
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.config import StoreEncryption
from kafscale.store.base import Upload
from kafscale.store.s3.requests import BodyDigest, BucketAddress, S3Requests

PATH_STYLE = S3Requests(BucketAddress.of("bucket", "us-east-1", endpoint="http://host:9000", prefix="/a b/"))
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)
KEYS = st.lists(TEXT.map(lambda text: text.replace("/", "_")), min_size=1, max_size=4).map("/".join)
KEYS = KEYS.filter(lambda key: not {".", ".."} & set(key.split("/")))


def test_the_requests_are_made_without_an_event_loop():
    """Readers that block share these modules."""
    modules = ["requests", "replies", "sigv4", "credentials"]
    imports = "; ".join(f"import kafscale.store.s3.{module}" for module in modules)
    check = "import sys; assert not {'trio', 'httpx', 'h11'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"{imports}; {check}"], check=True)


@pytest.mark.parametrize(
    ("bucket", "options", "origin", "base_path"),
    [
        ("b", {}, "https://b.s3.eu-west-1.amazonaws.com", ""),
        ("b.c", {}, "https://s3.eu-west-1.amazonaws.com", "/b.c"),
        ("b", {"path_style": True}, "https://s3.eu-west-1.amazonaws.com", "/b"),
        ("b", {"endpoint": "http://127.0.0.1:9000"}, "http://127.0.0.1:9000", "/b"),
        ("b", {"endpoint": "https://store.example/s3/"}, "https://store.example", "/s3/b"),
        ("b", {"endpoint": "https://store.example/a/v1+x y/%C3%BC"}, "https://store.example", "/a/v1%2Bx%20y/%C3%BC/b"),
        ("b", {"endpoint": "https://store.example/s3", "path_style": False}, "https://b.store.example", "/s3"),
        ("b", {"endpoint": "https://store.example", "path_style": False}, "https://b.store.example", ""),
    ],
)
def test_where_a_bucket_is(bucket, options, origin, base_path):
    address = BucketAddress.of(bucket, "eu-west-1", **options)
    assert (address.origin, address.base_path) == (origin, base_path)
    assert address.is_secure is origin.startswith("https")
    requests = S3Requests(address)
    assert requests.get("k").url == f"{origin}{base_path}/k"


@given(KEYS)
def test_a_key_survives_its_url(key):
    url = urlsplit(PATH_STYLE.get(key).url)
    assert unquote(url.path) == f"/bucket/a b/{key}"
    assert (url.query, url.fragment) == ("", "")
    assert set(url.path) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/%")


@given(TEXT, TEXT)
def test_a_query_survives_its_url(prefix, start_after):
    query = PATH_STYLE.list_page(prefix, start_after=start_after).url.partition("?")[2]
    assert "+" not in query
    fields = dict(parse_qsl(query, keep_blank_values=True))
    assert fields["prefix"] == f"a b/{prefix}"
    assert fields["start-after"] == f"a b/{start_after}"
    assert fields["list-type"] == "2"


def test_a_token_continues_instead_of_starting_after():
    query = PATH_STYLE.list_page("p", start_after="s", continuation_token="t/+=").url.partition("?")[2]
    assert "continuation-token=t%2F%2B%3D" in query
    assert "start-after" not in query


@pytest.mark.parametrize("key", ["", "/a", "a/../b", ".", "a//b", "a\nb", "a" * 1021])
def test_a_key_that_can_not_be_addressed_is_refused(key):
    with pytest.raises(ValueError, match="key"):
        PATH_STYLE.get(key)


@pytest.mark.parametrize(("start", "length"), [(-1, 5), (0, 0), (3, -1)])
def test_an_empty_or_negative_range_is_refused(start, length):
    with pytest.raises(ValueError, match="range"):
        PATH_STYLE.get_range("k", start, length)
    with pytest.raises(ValueError, match="range"):
        PATH_STYLE.get_tail("k", min(start, length))


def test_ranges_are_inclusive_and_tails_count_from_the_end():
    assert PATH_STYLE.get_range("k", 10, 5).headers["range"] == "bytes=10-14"
    assert PATH_STYLE.get_tail("k", 65536).headers["range"] == "bytes=-65536"


def test_a_put_carries_its_length_checksums_and_condition():
    parts = [b"1234", memoryview(b"56789")]
    digest = BodyDigest.of(parts, sign_payload=True)
    request = PATH_STYLE.put("k", parts, digest)
    assert dict(request.headers) == {
        "content-length": "9",
        "x-amz-checksum-crc32c": "4waSgw==",  # the check value of CRC-32C, E3069283
        "x-amz-content-sha256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
    }
    assert request.parts is parts
    assert request.idempotent
    absent, match = (
        PATH_STYLE.put_if_absent("k", parts, digest),
        PATH_STYLE.put_if_match("k", parts, digest, etag='"e"'),
    )
    assert absent.headers["if-none-match"] == "*"
    assert match.headers["if-match"] == '"e"'
    assert not absent.idempotent
    assert not match.idempotent
    assert BodyDigest.of(parts, sign_payload=False).payload_hash == "UNSIGNED-PAYLOAD"


@pytest.mark.parametrize(
    ("encryption", "expected"),
    [
        (None, {}),
        (StoreEncryption("AES256"), {"x-amz-server-side-encryption": "AES256"}),
        (
            StoreEncryption("aws:kms", "a:key"),
            {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": "a:key"},
        ),
    ],
)
def test_only_requests_that_create_an_object_have_encryption_headers(encryption, expected):
    """S3 refuses the headers where no object is made."""
    requests = S3Requests(PATH_STYLE.address, encryption)
    multipart = requests
    digest = BodyDigest.of([], sign_payload=True)
    upload = Upload("k", "id")
    makes = [
        requests.put("k", [], digest),
        requests.put_if_absent("k", [], digest),
        requests.put_if_match("k", [], digest, etag="e"),
        multipart.begin_upload("k"),
    ]
    others = [
        requests.get("k"),
        requests.get_range("k", 0, 1),
        requests.head("k"),
        requests.list_page(""),
        *requests.delete(["k"]),
        *requests.delete(["k", "l"]),
        requests.create_bucket(),
        multipart.put_part(upload, 1, [], digest),
        multipart.complete_upload(upload, [], if_absent=True),
        multipart.abort_upload(upload),
    ]

    def told(request):
        return {name: value for name, value in request.headers.items() if "encryption" in name}

    assert [told(request) for request in makes] == [expected] * len(makes)
    assert [told(request) for request in others] == [{}] * len(others)


def test_keys_are_deleted_a_thousand_at_once_and_one_by_itself():
    keys = [f"<{number}>&" for number in range(2001)]
    first, second, third = PATH_STYLE.delete(keys)
    assert [request.method for request in (first, second, third)] == ["POST", "POST", "DELETE"]
    names = [element.text for element in ElementTree.fromstring(b"".join(first.parts)).iterfind("{*}Object/{*}Key")]
    assert names == [f"a b/{key}" for key in keys[:1000]]
    assert {"content-md5", "x-amz-checksum-crc32c"} <= set(first.headers)
    assert third.url.endswith("/a%20b/%3C2000%3E%26")
    assert PATH_STYLE.delete([]) == []


def test_a_bucket_is_created_in_its_region():
    assert PATH_STYLE.create_bucket().parts == []
    elsewhere = S3Requests(BucketAddress.of("b", "eu-west-1")).create_bucket()
    assert b"<LocationConstraint>eu-west-1</LocationConstraint>" in b"".join(elsewhere.parts)
    assert elsewhere.headers["content-length"] == str(len(b"".join(elsewhere.parts)))
