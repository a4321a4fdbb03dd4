from contextlib import aclosing

import botocore.config
import botocore.session
import pytest
import trio
from botocore.exceptions import ClientError
from trio.testing import MockClock

from kafscale.store.s3.store import S3Settings, S3Store
from tests.devtools.fakes.s3_server import CREDENTIALS, ErrorReply, S3Server, open_s3_server, s3_server_in_thread


@pytest.fixture
def patient_clock():
    """Time passes when nothing has happened for 50 ms: sockets, unlike memory, deliver a little later."""
    return MockClock(autojump_threshold=0.05)


def boto_client(server, **options):
    """Amazon's own client: what it signs and reads, S3 would accept and send."""
    options = {
        "aws_access_key_id": CREDENTIALS.access_key_id,
        "aws_secret_access_key": CREDENTIALS.secret_access_key,
        "region_name": "us-east-1",
        **options,
    }
    config = botocore.config.Config(
        s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, request_checksum_calculation="when_required"
    )
    verify = str(server.certificate.certificate_file) if server.certificate else None
    session = botocore.session.get_session()
    return session.create_client("s3", endpoint_url=server.endpoint, config=config, verify=verify, **options)


def code_of(caught):
    return caught.value.response["Error"]["Code"]


@pytest.mark.parametrize("base_path", ["", "/storage/v1/s3"])
@pytest.mark.parametrize("tls", [False, True])
def test_amazons_client_finds_an_s3(tls, base_path):
    with s3_server_in_thread(tls=tls) as server:
        server.service.base_path = base_path
        client = boto_client(server)
        client.create_bucket(Bucket="bucket")
        client.head_bucket(Bucket="bucket")
        keys = ["a b+c", "d/ü", "e&<f>", "x" * 100]
        for key in keys:
            client.put_object(Bucket="bucket", Key=key, Body=key.encode())
        got = client.get_object(Bucket="bucket", Key="d/ü", Range="bytes=-2")
        assert (got["Body"].read(), got["ContentRange"]) == ("ü".encode(), "bytes 2-3/4")
        assert client.head_object(Bucket="bucket", Key="a b+c")["ContentLength"] == 5
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket", PaginationConfig={"PageSize": 3})
        assert [[row["Key"] for row in page["Contents"]] for page in pages] == [keys[:3], keys[3:]]
        client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": key} for key in keys[:3]]})
        client.delete_object(Bucket="bucket", Key=keys[3])
        assert server.service.buckets["bucket"] == {}
        client.close()


def test_amazons_client_is_refused_as_by_s3():
    with s3_server_in_thread() as server:
        client = boto_client(server)
        with pytest.raises(ClientError) as caught:
            client.list_objects_v2(Bucket="bucket")
        assert code_of(caught) == "NoSuchBucket"
        client.create_bucket(Bucket="bucket")
        etag = client.put_object(Bucket="bucket", Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
        client.put_object(Bucket="bucket", Key="k", Body=b"2", IfMatch=etag)
        for condition in ({"IfNoneMatch": "*"}, {"IfMatch": etag}):
            with pytest.raises(ClientError) as caught:
                client.put_object(Bucket="bucket", Key="k", Body=b"3", **condition)
            assert code_of(caught) == "PreconditionFailed"
        for options, code in (
            ({"aws_secret_access_key": "wrong"}, "SignatureDoesNotMatch"),
            ({"aws_access_key_id": "wrong"}, "InvalidAccessKeyId"),
            ({"aws_session_token": "none was given"}, "InvalidToken"),
        ):
            other = boto_client(server, **options)
            with pytest.raises(ClientError) as caught:
                other.put_object(Bucket="bucket", Key="k", Body=b"4")
            assert code_of(caught) == code
            other.close()
        elsewhere = boto_client(server, region_name="eu-west-1")
        elsewhere.put_object(Bucket="bucket", Key="k", Body=b"5")  # it reads the right region out of the refusal
        elsewhere.close()
        with pytest.raises(ClientError) as caught:
            client.get_bucket_policy(Bucket="bucket")
        assert code_of(caught) == "NotImplemented"
        client.close()


async def put_many(server, *, count, size_bytes):
    """How long it takes to put so many objects at once."""
    server.service.buckets["bucket"] = {}
    settings = S3Settings(bucket="bucket", endpoint=server.endpoint, region="us-east-1", sign_payload="never")
    async with aclosing(S3Store(settings, credentials=CREDENTIALS)) as store:
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(store.put, f"{number}", [bytes(size_bytes)])
        return trio.current_time() - start


async def test_latency_is_per_call_and_the_link_is_shared(patient_clock):
    async with open_s3_server() as server:
        server.latency_seconds = 10
        assert await put_many(server, count=5, size_bytes=100) == pytest.approx(10, abs=2)
        server.latency_by_operation["PutObject"] = 5
        assert await put_many(server, count=5, size_bytes=100) == pytest.approx(15, abs=2)
        server.latency_seconds, server.latency_by_operation = 0, {}
        server.limit_link(20_000)
        assert await put_many(server, count=5, size_bytes=100_000) == pytest.approx(25, abs=3)


async def test_counters_count_requests_bytes_and_connections():
    async with open_s3_server() as server:
        await put_many(server, count=5, size_bytes=100)
        counters = server.counters
        assert counters.requests == {"PutObject": 5}
        assert counters.bytes_received == 500
        assert counters.in_flight == 0
        assert counters.connections_opened == 5


async def test_an_interceptor_sees_each_call_and_can_refuse_a_call():
    calls = []

    def refuse_the_third(call):
        calls.append((call.operation, call.bucket, call.key))
        return ErrorReply(507, "Full") if len(calls) == 3 else None

    async with open_s3_server(S3Server(intercept=refuse_the_third)) as server:
        with pytest.RaisesGroup(pytest.RaisesExc(Exception, match="507 Full")):
            await put_many(server, count=5, size_bytes=1)
    assert ("PutObject", "bucket", "0") in calls


async def test_garbage_ends_its_connection_only():
    async with open_s3_server() as server:
        for garbage in (
            b"\0" * 100,
            b"GET / HTTP/1.1\r\n\r\n",
            b"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1",
        ):
            stream = await trio.open_tcp_stream("127.0.0.1", server.port)
            await stream.send_all(garbage)
            await stream.send_eof()
            async with stream:
                async for _ in stream:
                    pass
        assert await put_many(server, count=1, size_bytes=1) < 5
