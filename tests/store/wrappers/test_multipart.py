import os
import shutil
from contextlib import aclosing
from random import Random

import attrs
import pytest
import trio
import trio.testing

from kafscale.errors import AccessDenied, Conflict, NotFound, PreconditionFailed, SlowDown, StoreError, StoreUnavailable
from kafscale.metrics import Metrics
from kafscale.store.base import Upload
from kafscale.store.s3.replies import S3Reply, read_completion
from kafscale.store.s3.requests import BucketAddress, S3Requests
from kafscale.store.s3.store import S3Settings, S3Store
from kafscale.store.wrappers.limiter import LimitedStore, StoreLimiter, WorkClass
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.store.wrappers.multipart import PARTS_AT_ONCE_COUNT, MultipartStore
from kafscale.store.wrappers.retrying import RetryingStore, RetryPolicy
from tests.devtools.fakes.s3_server import CREDENTIALS, Drop, ErrorReply, Hang, open_s3_server
from tests.store.s3_transport import ServiceTransport

MIB = 1024 * 1024


def wrapped(raw, concurrency=4, part_bytes=10, threshold_bytes=0):
    """The wrappers as the broker has them."""
    metrics = StoreMetrics.register(Metrics())
    limiter = StoreLimiter(concurrency, metrics)
    view = LimitedStore(raw, limiter, WorkClass.ACKNOWLEDGE)
    store = MultipartStore(
        store=RetryingStore(view, RetryPolicy(), Random(1), metrics),
        uploads=raw,
        limiter=limiter,
        work_class=WorkClass.ACKNOWLEDGE,
        metrics=metrics,
        threshold_bytes=threshold_bytes,
        part_bytes=part_bytes,
    )
    return store, limiter, metrics


class Rig:
    """A bucket without a network, in simulated time."""

    def __init__(self, **options):
        self.transport = ServiceTransport()
        self.service = self.transport.service
        self.service.buckets["bucket"] = {}
        settings = S3Settings(bucket="bucket", endpoint="http://s3.test", region="us-east-1", path_style=True)
        self.raw = S3Store(settings, credentials=CREDENTIALS, transport=self.transport)
        self.store, self.limiter, self.metrics = wrapped(self.raw, **options)

    @property
    def objects(self):
        return {key: bytes(found.data) for key, found in self.service.buckets["bucket"].items()}


DATA = bytes(range(95))
PARTS = [DATA[:1], DATA[1:1], memoryview(DATA)[1:37], bytearray(DATA[37:])]


@pytest.mark.parametrize("write", ["put", "put_if_absent"])
async def test_a_large_object_goes_in_parts_and_comes_back_whole(write, autojump_clock):
    rig = Rig()
    etag = await getattr(rig.store, write)("key", PARTS)
    part = await rig.store.get("key")
    assert (bytes(part.data), part.etag) == (DATA, etag)
    assert rig.transport.requests == {
        "CreateMultipartUpload": 1,
        "UploadPart": 10,
        "CompleteMultipartUpload": 1,
        "GetObject": 1,
    }
    assert rig.service.uploads == {}
    assert rig.metrics.bytes.of("written").value == len(DATA)
    assert rig.metrics.operations.of("put_part", "ok").value == 10


@pytest.mark.parametrize(("threshold_bytes", "size"), [(0, 10), (50, 50)])
async def test_a_small_object_is_put_in_one_request(threshold_bytes, size, autojump_clock):
    rig = Rig(threshold_bytes=threshold_bytes)
    await rig.store.put("one", [bytes(size)])
    etag = await rig.store.put_if_absent("two", [bytes(size)])
    await rig.store.put_if_match("two", PARTS, etag)
    assert rig.transport.requests == {"PutObject": 3}
    await rig.store.put("three", [bytes(size + 1)])
    assert rig.transport.requests["CompleteMultipartUpload"] == 1


@pytest.mark.parametrize(("concurrency", "at_once"), [(1, 1), (3, 3), (64, PARTS_AT_ONCE_COUNT)])
async def test_parts_go_at_once_as_tokens_allow(concurrency, at_once, autojump_clock):
    """At 1, an operation that waited for a second token while it holds one would hang."""
    rig = Rig(concurrency=concurrency)
    await rig.store.put("key", PARTS)
    assert rig.transport.max_in_flight["UploadPart"] == at_once
    assert rig.limiter.statistics().in_use_count == 0


async def test_the_condition_is_that_of_the_completion(autojump_clock):
    rig = Rig()
    await rig.raw.put("key", [b"theirs"])
    with pytest.raises(PreconditionFailed):
        await rig.store.put_if_absent("key", PARTS)
    assert rig.objects == {"key": b"theirs"}
    assert rig.service.uploads == {}
    await rig.store.put("key", PARTS)
    assert rig.objects == {"key": DATA}


async def test_parts_are_retried_apart(autojump_clock):
    rig = Rig()
    rig.transport.inject(ErrorReply(503, "SlowDown"), operation="UploadPart", count=2)
    rig.transport.inject(Drop(after_effect=True), operation="UploadPart", count=2)
    rig.transport.inject(Drop(after_effect=False), operation="CreateMultipartUpload")
    await rig.store.put_if_absent("key", PARTS)
    assert rig.objects == {"key": DATA}
    assert rig.transport.requests["UploadPart"] == 14
    assert rig.metrics.retries.of("put_part", "slow_down").value == 2


@pytest.mark.parametrize("write", ["put", "put_if_absent"])
async def test_a_completion_with_a_lost_reply_is_recognised_as_successful(write, autojump_clock):
    """The next attempt finds no such upload any more."""
    rig = Rig()
    rig.transport.inject(Drop(after_effect=True), operation="CompleteMultipartUpload")
    etag = await getattr(rig.store, write)("key", PARTS)
    assert etag == rig.service.buckets["bucket"]["key"].etag
    assert rig.metrics.lost_replies.of("ours").value == 1
    assert rig.transport.requests["CreateMultipartUpload"] == 1


async def test_a_completion_that_had_no_effect_is_tried_again(autojump_clock):
    rig = Rig()
    rig.transport.inject(Drop(after_effect=False), operation="CompleteMultipartUpload")
    await rig.store.put_if_absent("key", PARTS)
    assert rig.objects == {"key": DATA}
    assert rig.transport.requests["UploadPart"] == 10


async def test_after_a_lost_completion_the_object_of_another_is_not_taken_for_ours(autojump_clock):
    rig = Rig()
    rig.transport.inject(Drop(after_effect=False), operation="CompleteMultipartUpload")
    async with trio.open_nursery() as nursery:

        async def write():
            with pytest.raises(PreconditionFailed):
                await rig.store.put_if_absent("key", PARTS)

        nursery.start_soon(write)
        while not rig.transport.requests["CompleteMultipartUpload"]:
            await trio.sleep(0.001)
        rig.service.buckets["bucket"]["key"] = rig.service._stored(bytes(len(DATA)))
    assert rig.service.uploads == {}


async def test_an_upload_aborted_by_another_party_is_started_again(autojump_clock):
    rig = Rig()
    rig.transport.inject(ErrorReply(404, "NoSuchUpload"), operation="UploadPart")
    await rig.store.put_if_absent("key", PARTS)
    assert rig.objects == {"key": DATA}
    assert rig.transport.requests["CreateMultipartUpload"] == 2


@pytest.mark.parametrize(
    ("operation", "fault", "expected"),
    [
        ("CreateMultipartUpload", ErrorReply(403, "AccessDenied"), AccessDenied),
        ("UploadPart", ErrorReply(403, "AccessDenied"), AccessDenied),
        ("UploadPart", ErrorReply(503, "SlowDown"), SlowDown),
        ("CompleteMultipartUpload", ErrorReply(409, "ConditionalRequestConflict"), Conflict),
        ("CompleteMultipartUpload", Drop(after_effect=False), StoreUnavailable),
        ("CompleteMultipartUpload", ErrorReply(404, "NoSuchUpload"), NotFound),
    ],
)
async def test_an_upload_that_fails_for_good_leaves_no_parts_behind(operation, fault, expected, autojump_clock):
    rig = Rig()
    rig.transport.inject(fault, operation=operation, count=1000)
    with pytest.raises(expected):
        await rig.store.put_if_absent("key", PARTS)
    assert rig.objects == {}
    assert rig.service.uploads == {}
    assert rig.limiter.statistics().in_use_count == 0


async def test_a_completion_that_fails_with_status_200_is_retried(autojump_clock):
    rig = Rig()
    rig.transport.inject(ErrorReply(200, "InternalError"), operation="CompleteMultipartUpload")
    rig.transport.inject(ErrorReply(200, "SlowDown"), operation="CompleteMultipartUpload")
    await rig.store.put_if_absent("key", PARTS)
    assert rig.transport.requests["CompleteMultipartUpload"] == 3
    assert rig.objects == {"key": DATA}


@pytest.mark.parametrize("operation", ["UploadPart", "CompleteMultipartUpload"])
async def test_a_cancelled_upload_is_aborted(operation, autojump_clock):
    rig = Rig()
    rig.transport.inject(Hang(), operation=operation, count=1000)
    with trio.move_on_after(1) as scope:
        await rig.store.put_if_absent("key", PARTS)
    assert scope.cancelled_caught
    assert rig.objects == {}
    assert rig.service.uploads == {}
    assert rig.limiter.statistics().in_use_count == 0


async def test_a_part_that_fails_while_the_upload_is_cancelled_is_one_error(autojump_clock):
    """It came in a group with the cancellation, which nobody who waits for an upload expects."""
    rig = Rig()
    rig.transport.inject(ErrorReply(403, "AccessDenied"), operation="UploadPart")
    put_part = rig.raw.put_part
    with trio.CancelScope() as scope:

        async def fail_and_cancel(*args):
            try:
                return await put_part(*args)
            except AccessDenied:
                scope.cancel()
                raise

        rig.raw.put_part = fail_and_cancel
        with pytest.raises(AccessDenied):
            await rig.store.put_if_absent("key", PARTS)
    assert rig.service.uploads == {}


async def test_a_failing_abort_is_logged_and_does_not_delay_the_error(caplog, autojump_clock):
    rig = Rig()
    rig.transport.inject(Hang(), operation="AbortMultipartUpload", count=1000)
    rig.transport.inject(ErrorReply(403, "AccessDenied"), operation="UploadPart", count=10)
    started = trio.current_time()
    with pytest.raises(AccessDenied):
        await rig.store.put_if_absent("key", PARTS)
    assert trio.current_time() - started < 6
    rig.transport.inject(ErrorReply(403, "AccessDenied"), operation="UploadPart", count=10)
    rig.transport._faults.extendleft([("AbortMultipartUpload", ErrorReply(403, "AccessDenied"))])
    with pytest.raises(AccessDenied):
        await rig.store.put_if_absent("key", PARTS)
    assert "stay behind" in caplog.text


def test_a_completion_can_begin_with_keep_alive_blanks():
    address = BucketAddress.of("bucket", "us-east-1")
    request = S3Requests(address).complete_upload(Upload("key", "id"), [], if_absent=False)
    body = (
        b'  \n <?xml version="1.0"?><CompleteMultipartUploadResult><ETag>"e-1"</ETag></CompleteMultipartUploadResult>'
    )
    assert read_completion(request, S3Reply(200, {}, body)) == '"e-1"'
    with pytest.raises(StoreUnavailable):
        read_completion(request, S3Reply(200, {}, b"  "))
    with pytest.raises(StoreUnavailable, match="names no ETag"):
        read_completion(request, S3Reply(200, {}, b"<html>back soon</html>"))


# ---- at real servers


STRICT = ["stand-in", "minio"] if shutil.which("minio") else ["stand-in"]


@pytest.fixture(params=[*STRICT, "moto"])
async def bucket(request, s3_process):
    """A bucket, and the wrappers around it with S3's smallest parts."""
    name = request.param
    settings = {"bucket": f"multipart-{os.getpid()}", "region": "us-east-1"}
    if name == "stand-in":
        async with open_s3_server() as server:
            yield await new_bucket(S3Settings(endpoint=server.endpoint, **settings), CREDENTIALS)
        return
    process = s3_process(f"s3-{name}")
    yield await new_bucket(S3Settings(endpoint=process.endpoint, **settings), process.credentials)


async def new_bucket(settings, credentials):
    raw = S3Store(settings, credentials=credentials)
    await raw.create_bucket()
    return raw


async def test_a_server_takes_parts_and_decides_at_completion(bucket):
    store, _, _ = wrapped(bucket, part_bytes=5 * MIB)
    data = os.urandom(10 * MIB + 7)
    async with aclosing(bucket):
        await store.put_if_absent("new/key with blank+plus", [data[: 6 * MIB], memoryview(data)[6 * MIB :]])
        assert bytes((await store.get("new/key with blank+plus")).data) == data
        with pytest.raises(PreconditionFailed):
            await store.put_if_absent("new/key with blank+plus", [data])
        await store.put("new/key with blank+plus", [data[::-1]])
        assert bytes((await store.get("new/key with blank+plus")).data) == data[::-1]
        await store.delete(["new/key with blank+plus"])


@pytest.mark.parametrize("bucket", STRICT, indirect=True)  # moto lets several win
async def test_of_several_uploads_of_one_key_one_wins(bucket):
    store, _, _ = wrapped(bucket, concurrency=16, part_bytes=5 * MIB)
    outcomes = {}

    async def write(number):
        try:
            await store.put_if_absent("contested", [bytes([number]) * (5 * MIB + 1)])
            outcomes[number] = True
        except PreconditionFailed:
            outcomes[number] = False

    async with aclosing(bucket):
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(write, number)
        [winner] = [number for number, won in outcomes.items() if won]
        assert bytes((await store.get_range("contested", 5 * MIB, 1)).data) == bytes([winner])
        await store.delete(["contested"])


@pytest.mark.parametrize("bucket", STRICT, indirect=True)  # moto checks neither
async def test_a_server_checks_parts_and_uploads(bucket):
    async with aclosing(bucket):
        upload = await bucket.begin_upload("damaged")
        part = await bucket.put_part(upload, 1, [b"data"])
        with pytest.raises(StoreError):
            await bucket.complete_upload(upload, [attrs.evolve(part, crc32c="AAAAAA==")], if_absent=True)
        with pytest.raises(StoreError):
            await bucket.complete_upload(upload, [attrs.evolve(part, number=2)], if_absent=True)
        with pytest.raises(NotFound):
            await bucket.head("damaged")
        await bucket.abort_upload(upload)
        await bucket.abort_upload(upload)
        with pytest.raises(NotFound):
            await bucket.put_part(upload, 2, [b"data"])
        with pytest.raises(NotFound):
            await bucket.complete_upload(upload, [part], if_absent=True)
