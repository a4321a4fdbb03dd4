import math
import os
import time
from contextlib import aclosing, asynccontextmanager

import attrs
import httpx
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.errors import AccessDenied, ConfigError, NotFound, SlowDown, StartupError, StoreUnavailable, WrongRegion
from kafscale.store.s3.store import HASH_INLINE_BYTES, S3Settings, S3Store
from tests.devtools.fakes.s3_server import CREDENTIALS, Drop, ErrorReply, Hang, S3Server, Truncate, open_s3_server


@pytest.fixture
def patient_clock():
    """Time passes when nothing has happened for 50 ms: sockets, unlike memory, deliver a little later."""
    return MockClock(autojump_threshold=0.05)


@asynccontextmanager
async def open_pair(server=None, *, tls=False, credentials=CREDENTIALS, **settings):
    """A stand-in server with a bucket, and a store in it."""
    async with open_s3_server(server, tls=tls) as server:
        server.service.buckets["bucket"] = {}
        defaults = {"bucket": "bucket", "endpoint": server.endpoint, "region": "us-east-1", "prefix": "p"}
        if tls:
            defaults["ca_file"] = str(server.certificate.certificate_file)
        async with aclosing(S3Store(S3Settings(**{**defaults, **settings}), credentials=credentials)) as store:
            yield server, store


async def test_objects_are_below_the_prefix():
    async with open_pair() as (server, store):
        await store.put("a/b", [b"1"])
        server.service.buckets["bucket"]["q/c"] = server.service.buckets["bucket"]["p/a/b"]
        async with aclosing(store.list("")) as pages:
            assert [info.key async for page in pages for info in page] == ["a/b"]


@pytest.mark.parametrize("tls", [False, True])
async def test_connections_are_kept_and_bounded_by_the_setting(tls):
    async with open_pair(tls=tls, max_connections=4) as (server, store):
        server.latency_seconds = 0.001
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(store.put, f"key-{number}", [b"x"])
        assert server.counters.max_in_flight == server.counters.connections_opened == 4
        statistics = store.statistics()
        assert (statistics.opened_count, statistics.reused_count, statistics.idle_count) == (4, 36, 4)


async def test_idle_connections_closed_by_the_server_cause_no_failed_request():
    async with open_pair() as (server, store):
        for number in range(3):
            await store.put_if_absent(f"key-{number}", [b"x"])
            await wait_all_tasks_blocked(0.01)
            assert server.close_idle_connections() == 1
            await wait_all_tasks_blocked(0.01)
        assert server.counters.requests == {"PutObject": 3}
        assert server.counters.connections_opened == 3


# --- what goes wrong


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (ErrorReply(503, "SlowDown"), SlowDown),
        (ErrorReply(500, "InternalError"), StoreUnavailable),
        (ErrorReply(403, "AccessDenied"), AccessDenied),
        (Drop(after_effect=False), StoreUnavailable),
        (Drop(after_effect=True), StoreUnavailable),
        (Truncate(3), StoreUnavailable),
    ],
)
async def test_a_fault_is_its_error_and_the_next_request_is_well(fault, expected):
    async with open_pair() as (server, store):
        await store.put("key", [b"content"])
        server.inject(fault, operation="GetObject", count=2)  # a read is sent twice if its connection was an old one
        with pytest.raises(expected, match="get s3://bucket/p/key"):
            await store.get("key")
        server.clear_faults()
        assert bytes((await store.get("key")).data) == b"content"
        assert store.statistics().in_use_count == 0


@pytest.mark.parametrize("after_effect", [False, True])
async def test_a_conditional_put_with_a_lost_reply_is_not_sent_twice(after_effect):
    async with open_pair() as (server, store):
        await store.put("warm", [b""])
        server.inject(Drop(after_effect=after_effect))
        with pytest.raises(StoreUnavailable):
            await store.put_if_absent("key", [b"mine"])
        assert server.counters.requests["PutObject"] == 2
        assert ("p/key" in server.service.buckets["bucket"]) is after_effect


async def test_a_server_that_hangs_times_out(patient_clock):
    async with open_pair(read_timeout_seconds=7.0) as (server, store):
        server.inject(Hang())
        start = trio.current_time()
        with pytest.raises(StoreUnavailable, match="nothing was received for 7"):
            await store.head("key")
        assert trio.current_time() - start == pytest.approx(7, abs=1)


async def test_every_operation_on_a_missing_bucket_raises_not_found():
    async with open_pair() as (server, store):
        del server.service.buckets["bucket"]
        for call in (store.get("k"), store.put("k", []), store.put_if_match("k", [], '"e"'), store.delete(["a", "b"])):
            with pytest.raises(NotFound, match="NoSuchBucket"):
                await call
        await store.create_bucket()
        await store.put("k", [])


async def test_a_wrong_region_error_has_the_right_region():
    server = S3Server()
    server.service.region = "eu-north-1"
    async with open_pair(server) as (_, store):
        with pytest.raises(WrongRegion) as caught:
            await store.get("key")
        assert caught.value.region == "eu-north-1"


@pytest.mark.parametrize("ahead_seconds", [7200, -7200])
async def test_a_clock_that_is_off_is_made_good(ahead_seconds, caplog):
    async with open_pair() as (server, store):
        server.service.clock = lambda: time.time() + ahead_seconds
        async with trio.open_nursery() as nursery:
            for number in range(8):  # all signed with the wrong time before the first is told the right one
                nursery.start_soon(store.put, f"key-{number}", [b"x"])
        assert server.counters.requests == {"PutObject": 16}
        assert len(caplog.records) == 1
        server.counters.requests.clear()
        await store.put("key", [b"x"])
        assert (await store.head("key")).size_bytes == 1
        assert server.counters.requests == {"PutObject": 1, "HeadObject": 1}


@pytest.mark.parametrize("ahead_seconds", [100, -100])
async def test_a_store_with_a_small_skew_limit_is_sent_times_of_the_servers_clock(ahead_seconds):
    """A clock that is off by less than four minutes was taken for credentials that are refused."""
    async with open_pair() as (server, store):
        server.service.max_skew_seconds = 30
        server.service.clock = lambda: time.time() + ahead_seconds
        await store.put("key", [b"x"])
        server.service.clock = time.time  # the clock was set meanwhile
        assert bytes((await store.get("key")).data) == b"x"


async def test_wrong_credentials_are_refused():
    async with open_pair(credentials=attrs.evolve(CREDENTIALS, secret_access_key="wrong")) as (_, store):
        with pytest.raises(AccessDenied, match="SignatureDoesNotMatch"):
            await store.get("key")


async def test_temporary_credentials_are_signed_with_their_token():
    temporary = attrs.evolve(CREDENTIALS, access_key_id="temporary", session_token="a/token+=")
    async with open_pair(credentials=temporary) as (server, store):
        server.service.credentials["temporary"] = temporary
        await store.put("key", [b"x"])
        server.service.credentials["temporary"] = attrs.evolve(temporary, session_token="another")
        with pytest.raises(AccessDenied, match="InvalidToken"):
            await store.put("key", [b"x"])


# --- payloads


@pytest.mark.parametrize(
    ("tls", "sign_payload", "is_signed"),
    [(False, "auto", True), (True, "auto", False), (True, "always", True), (False, "never", False)],
)
@pytest.mark.parametrize("size_bytes", [0, 100, HASH_INLINE_BYTES + 1])
async def test_payloads_are_signed_unless_tls_protects_the_connection(tls, sign_payload, is_signed, size_bytes):
    async with open_pair(tls=tls, sign_payload=sign_payload) as (server, store):
        seen = []

        def note(call):
            seen.append(call.headers)

        server.intercept = note
        data = os.urandom(size_bytes)
        await store.put("key", [data[:50], data[50:]])
        assert (seen[0]["x-amz-content-sha256"] != "UNSIGNED-PAYLOAD") is is_signed
        assert len(seen[0]["x-amz-checksum-crc32c"]) == 8
        assert bytes((await store.get("key")).data) == data


async def test_a_payload_that_changes_on_its_way_is_not_stored():
    async with open_pair(sign_payload="never") as (server, store):
        original = store._digest

        async def lie(parts):
            return await original([b"another"])

        store._digest = lie
        with pytest.raises(StoreUnavailable, match="BadDigest"):
            await store.put("key", [b"content"])
        assert server.service.buckets["bucket"] == {}


# --- addresses and settings


async def test_a_bucket_can_be_addressed_by_host_name():
    """The name need not resolve: the transport is told where it is."""
    server = S3Server()
    server.service.domain = "s3.example"
    async with open_s3_server(server):
        inner = S3Store(S3Settings(bucket="x"))._transport

        class ToServer(httpx.AsyncBaseTransport):
            async def handle_async_request(self, request):
                assert request.url.host == "bucket.s3.example"
                request.url = request.url.copy_with(host="127.0.0.1", port=server.port)
                return await inner.handle_async_request(request)

            async def aclose(self):
                await inner.aclose()

        settings = S3Settings(bucket="bucket", endpoint="http://s3.example", path_style=False, region="us-east-1")
        async with aclosing(S3Store(settings, credentials=CREDENTIALS, transport=ToServer())) as store:
            await store.create_bucket()
            await store.put("a b/c", [b"x"])
            assert list(server.service.buckets["bucket"]) == ["a b/c"]
            assert store.statistics() is None


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "localhost", "ftp://host", "http://", "http://host/?a=b"])
def test_an_endpoint_that_is_not_a_url_is_refused(endpoint):
    with pytest.raises(ConfigError, match="--s3-endpoint"):
        S3Store(S3Settings(bucket="b", endpoint=endpoint))


def test_the_region_is_found_where_aws_sdks_look(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    assert S3Store(S3Settings(bucket="b")).address.origin == "https://b.s3.ap-south-1.amazonaws.com"
    assert S3Store(S3Settings(bucket="b", region="eu-west-3")).address.region == "eu-west-3"


def test_the_region_has_a_default(monkeypatch, tmp_path):
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    assert S3Store(S3Settings(bucket="b", endpoint="http://127.0.0.1:1")).address.region == "us-east-1"


def test_a_profile_file_that_can_not_be_read_is_a_line(monkeypatch, tmp_path):
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "config").write_text("no section")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(StartupError, match="config"):
        S3Store(S3Settings(bucket="b"))


async def test_credentials_are_looked_for_in_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret_access_key)
    async with open_pair(credentials=None, max_connections=math.inf) as (_, store):
        await store.put("key", [b"x"])
