from __future__ import annotations

import time
from unittest import mock
from urllib.parse import quote

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import given
from hypothesis import strategies as st

from kafscale.store.s3.requests import BucketAddress, S3Requests
from kafscale.store.s3.sigv4 import (
    EMPTY_SHA256,
    UNSIGNED_PAYLOAD,
    RequestSigner,
    S3Credentials,
    Signable,
    SigningScope,
    amz_stamp,
    authorization,
    signature,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).filter(
    lambda key: not key.startswith("/") and not {".", ".."} & set(key.split("/"))
)
HEADER_VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=30).map(str.strip)
HEADERS = st.dictionaries(
    st.from_regex(r"\Ax-amz-(meta-)?[a-z0-9-]{1,10}\Z").filter(
        lambda name: name not in ("x-amz-date", "x-amz-content-sha256", "x-amz-security-token")
    ),
    HEADER_VALUES,
    max_size=4,
)
QUERIES = st.dictionaries(
    st.one_of(TEXT, st.sampled_from(["list-type", "prefix", "a", "a-b", "a=b", "delete"])).filter(bool),
    TEXT,
    max_size=5,
)
SECRETS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=40)


def botocore_authorization(signable: Signable, scope: SigningScope, credentials: S3Credentials) -> str:
    """What botocore signs for the same request, with its clock set to the scope's."""
    headers = {name: value for name, value in signable.headers.items() if name not in ("host", "x-amz-date")}
    request = AWSRequest(
        method=signable.method, url=f"https://{signable.headers['host']}{signable.target}", headers=headers
    )
    request.context["timestamp"] = scope.stamp
    signer = S3SigV4Auth(
        BotocoreCredentials(credentials.access_key_id, credentials.secret_access_key, credentials.session_token),
        scope.service,
        scope.region,
    )
    signs_payload = signable.payload_hash != UNSIGNED_PAYLOAD
    request.context["client_config"] = Config(s3={"payload_signing_enabled": signs_payload})
    now = time.strptime(scope.stamp, "%Y%m%dT%H%M%SZ")
    with mock.patch("botocore.auth.get_current_datetime") as clock:
        clock.return_value.strftime = lambda form: time.strftime(form, now)
        signer.add_auth(request)
    return str(request.headers["Authorization"])


@given(
    method=st.sampled_from(["GET", "PUT", "HEAD", "POST", "DELETE"]),
    key=KEYS,
    query=QUERIES,
    headers=HEADERS,
    secret=SECRETS,
    token=st.none() | st.from_regex(r"\A[A-Za-z0-9+/=]{1,50}\Z"),
    now=st.floats(0, 4e9),
    unsigned=st.booleans(),
)
def test_signature_is_botocores(method, key, query, headers, secret, token, now, unsigned):
    pairs = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())
    scope = SigningScope(stamp=amz_stamp(now), region="eu-central-1")
    payload_hash = UNSIGNED_PAYLOAD if unsigned else EMPTY_SHA256
    credentials = S3Credentials(access_key_id="AKIDEXAMPLE", secret_access_key=secret, session_token=token)
    signed = {
        **headers,
        "host": "bucket.s3.eu-central-1.amazonaws.com",
        "x-amz-date": scope.stamp,
        "x-amz-content-sha256": payload_hash,
    }
    if token is not None:
        signed["x-amz-security-token"] = token
    signable = Signable(
        method=method,
        target=f"/{quote(key, safe='/')}" + ("?" + pairs if pairs else ""),
        headers=signed,
        payload_hash=payload_hash,
    )
    assert authorization(signable, scope, credentials) == botocore_authorization(signable, scope, credentials)


def test_query_is_sorted_by_name_and_not_as_text():
    """`a-b=1` sorts before `a=1` as text, but `a` before `a-b` as a name."""
    scope = SigningScope(stamp="20260102T030405Z", region="us-east-1")
    credentials = S3Credentials(access_key_id="AKID", secret_access_key="secret")
    signable = Signable(
        method="GET",
        target="/bucket?a-b=1&a=1",
        headers={"host": "h", "x-amz-date": scope.stamp, "x-amz-content-sha256": EMPTY_SHA256},
        payload_hash=EMPTY_SHA256,
    )
    assert authorization(signable, scope, credentials) == botocore_authorization(signable, scope, credentials)


def test_a_path_of_the_endpoint_is_signed_as_botocore_does():
    """A gateway's prefix stands before the bucket, and the signature covers it."""
    address = BucketAddress.of("bucket", "us-east-1", endpoint="https://gate.example/storage/v1+x/s3 ü/", prefix="p q")
    for request in (S3Requests(address).get("k+1"), S3Requests(address).list_page("a b")):
        target = request.url.removeprefix("https://gate.example")
        assert target.startswith("/storage/v1%2Bx/s3%20%C3%BC/bucket")
        headers = {"host": "gate.example", **request.headers}
        credentials = S3Credentials(access_key_id="AKID", secret_access_key="secret")
        RequestSigner(region="us-east-1", clock=lambda: 1_800_000_000.0).sign(
            request.method, target, headers, credentials
        )
        signed = headers.pop("authorization")
        signable = Signable(
            method=request.method, target=target, headers=headers, payload_hash=headers["x-amz-content-sha256"]
        )
        scope = SigningScope(stamp=headers["x-amz-date"], region="us-east-1")
        assert signed.endswith(f"Signature={signature(signable, scope, 'secret')}")
        assert authorization(signable, scope, credentials) == botocore_authorization(signable, scope, credentials)


def test_secrets_are_not_in_the_repr():
    shown = repr(S3Credentials(access_key_id="AKID", secret_access_key="s3cr3t", session_token="t0k3n"))
    assert "AKID" in shown
    assert "s3cr3t" not in shown
    assert "t0k3n" not in shown
