"""The blocking bucket on a directory and on an S3 server, and what it does when that fails."""

import itertools
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import attrs
import pytest

from kafscale.config import StoreUrl
from kafscale.errors import (
    AccessDenied,
    ClockRefused,
    ConfigError,
    NotFound,
    RangeNotSatisfiable,
    SlowDown,
    StoreError,
    StoreUnavailable,
)
from kafscale.spark.bucket import s3_bucket
from kafscale.spark.bucket.bucket import Bucket, BucketOptions
from kafscale.spark.bucket.s3_bucket import S3Bucket, _CredentialSource
from kafscale.store.s3.credentials import REFRESH_AHEAD_SECONDS, REFRESH_RETRY_SECONDS
from kafscale.store.s3.sigv4 import S3Credentials
from tests.devtools.fakes.s3_server import CREDENTIALS, Drop, ErrorReply, S3Server, s3_server_in_thread

OBJECTS = {f"a/{number:04}": b"object %d" % number for number in range(1005)} | {"b/x": b"0123456789"}


@pytest.fixture
def server():
    with s3_server_in_thread() as server:
        server.service.fill("bucket", {f"prefix/{key}": data for key, data in OBJECTS.items()})
        yield server


@contextmanager
def bucket_on(server: S3Server, **changed):
    options = {"credentials": CREDENTIALS, "endpoint": server.endpoint, "url": StoreUrl.parse("s3://bucket/prefix")}
    bucket = pickle.loads(pickle.dumps(BucketOptions(**{**options, **changed}))).open()
    assert isinstance(bucket, S3Bucket)
    bucket.sleep = lambda seconds: None
    with closing(bucket):
        yield bucket


@pytest.fixture(params=["file", "s3"])
def bucket(request, tmp_path) -> Iterator[Bucket]:
    if request.param == "s3":
        with bucket_on(request.getfixturevalue("server")) as bucket:
            yield bucket
        return
    for key, data in OBJECTS.items():
        (tmp_path / "bucket" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "bucket" / key).write_bytes(data)
    yield BucketOptions(url=StoreUrl.parse(f"file:{tmp_path / 'bucket'}")).open()


def test_objects_are_listed_and_read(bucket):
    assert [info.key for info in bucket.list("")] == sorted(OBJECTS)
    assert [info.key for info in bucket.list("a/", "a/1002")] == ["a/1003", "a/1004"]
    assert bytes(bucket.get("b/x").data) == b"0123456789"
    assert bytes(bucket.get_range("b/x", 2, 3).data) == b"234"
    assert bytes(bucket.get_range("b/x", 8, 30).data) == b"89"
    assert bytes(bucket.get_tail("b/x", 4).data) == b"6789"
    assert bytes(bucket.get_tail("b/x", 40).data) == b"0123456789"
    with pytest.raises(NotFound):
        bucket.get("b/y")
    with pytest.raises(RangeNotSatisfiable):
        bucket.get_range("b/x", 10, 1)


def test_failures_that_pass_are_tried_again(server):
    with bucket_on(server) as bucket:
        for fault in (
            ErrorReply(),
            Drop(after_effect=False),
            Drop(after_effect=True),
            ErrorReply(500, "InternalError"),
        ):
            server.inject(fault, count=3)
            assert bytes(bucket.get("b/x").data) == b"0123456789"


def test_a_store_that_only_fails_is_reported(server):
    with bucket_on(server) as bucket:
        now = iter(range(0, 1000, 10))
        bucket.clock = lambda: next(now)
        server.inject(ErrorReply(503, "ServiceUnavailable"), count=100)
        with pytest.raises(SlowDown):
            bucket.get("b/x")


def test_a_connection_that_the_server_has_closed_meanwhile_is_replaced(server):
    with bucket_on(server) as bucket:
        bucket.sleep = lambda seconds: pytest.fail("it took a retry")
        bucket.get("b/x")
        server.inject(Drop(after_effect=False))
        assert bytes(bucket.get("b/x").data) == b"0123456789"
        bucket.get("b/x")
        assert server.counters.connections_opened == 2


def test_threads_share_connections_without_mixing_replies(server):
    with bucket_on(server) as bucket:
        wrong = []

        def read(number: int) -> None:
            for key in sorted(OBJECTS)[number::8]:
                if bytes(bucket.get(key).data) != OBJECTS[key]:
                    wrong.append(key)

        threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert server.counters.connections_opened <= 8


def test_wrong_credentials_are_refused_at_once(server):
    with bucket_on(server, credentials=S3Credentials(access_key_id="who", secret_access_key="knows")) as bucket:
        bucket.sleep = lambda seconds: pytest.fail("it was tried again")
        with pytest.raises(AccessDenied):
            bucket.get("b/x")


def test_a_bucket_behind_the_path_of_a_gateway_is_read(server):
    server.service.base_path = "/storage/v1+x/s3 ü"
    with bucket_on(server) as bucket:
        assert bytes(bucket.get("b/x").data) == b"0123456789"
        assert [info.key for info in bucket.list("a/", "a/1002")] == ["a/1003", "a/1004"]


def test_a_refused_clock_is_retried_and_called_so(server):
    """Were it AccessDenied, readers would take the object for one that they may not read, and go on without it."""
    server.inject(ErrorReply(403, "RequestTimeTooSkewed"))
    with bucket_on(server) as bucket:
        assert bytes(bucket.get("b/x").data) == b"0123456789"
        server.inject(ErrorReply(403, "RequestTimeTooSkewed"), count=1000)
        now = itertools.count(0, 10)
        bucket.clock = lambda: next(now)
        with pytest.raises(ClockRefused, match="clock"):
            bucket.get("b/x")


def test_requests_succeed_despite_a_wrong_clock(server):
    with bucket_on(server) as bucket:
        bucket.signer.clock = lambda: 1_000_000_000.0
        assert bytes(bucket.get("b/x").data) == b"0123456789"


def test_a_bucket_is_looked_at_without_writing(tmp_path):
    with pytest.raises(ConfigError, match="give the --store"):
        BucketOptions(url=StoreUrl.parse(f"file:{tmp_path / 'none'}")).open()
    assert list(BucketOptions(url=StoreUrl.parse(f"file:{tmp_path}")).open().list("")) == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="no job can read it"):
        BucketOptions(url=StoreUrl.parse("memory:")).open()


class Issuer:
    """Gives credentials, or raises, as it is told."""

    def __init__(self, *answers: S3Credentials | StoreError) -> None:
        self.answers = list(answers)

    def lookup(self):
        yield from ()
        answer = self.answers.pop(0)
        if isinstance(answer, StoreError):
            raise answer
        return answer


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), AccessDenied("no S3 credentials found")])
def test_credentials_that_could_not_be_refreshed_were_dropped_while_they_were_good(error):
    now = [0.0]
    first, second = (
        S3Credentials(access_key_id="id", secret_access_key="key", expires_at_seconds=seconds)
        for seconds in (9_000, 18_000)
    )
    issuer = Issuer(first, error, second, error)
    source = _CredentialSource(providers={"issuer": issuer.lookup}, clock=lambda: now[0])
    assert source.get() is first
    now[0] = 9_000 - REFRESH_AHEAD_SECONDS
    assert source.get() is first
    now[0] += REFRESH_RETRY_SECONDS - 1
    assert source.get() is first
    assert len(issuer.answers) == 2, "it is not asked for each request"
    now[0] += 1
    assert source.get() is second
    now[0] = 18_000
    with pytest.raises(type(error)):
        source.get()


def test_tasks_of_a_process_share_looked_up_credentials(server, monkeypatch, tmp_path):
    """The credentials of an instance, as of a web identity, are asked for once, not by each task."""
    looked_up = []

    class Instance(Issuer):
        def lookup(self):
            looked_up.append(1)
            return super().lookup()

    def providers(environ, home):
        return {"instance": Instance(attrs.evolve(CREDENTIALS, expires_at_seconds=time.time() + 9_000)).lookup}

    monkeypatch.setattr(s3_bucket, "default_providers", providers)
    monkeypatch.setenv("AWS_ROLE_SESSION_NAME", str(tmp_path))  # so no other test has the same
    for _ in range(3):
        with bucket_on(server, credentials=None) as bucket:
            assert bytes(bucket.get("b/x").data) == b"0123456789"
    assert len(looked_up) == 1
    monkeypatch.setenv("AWS_ROLE_SESSION_NAME", f"{tmp_path}, another")
    with bucket_on(server, credentials=None) as bucket:
        assert bytes(bucket.get("b/x").data) == b"0123456789"
    assert len(looked_up) == 2


def test_credentials_that_do_not_expire_are_looked_up_again_after_a_while():
    now = [0.0]
    first, second = (S3Credentials(access_key_id=each, secret_access_key="key") for each in ("old", "rotated"))
    issuer = Issuer(first, AccessDenied("the file is being written"), second)
    source = _CredentialSource(providers={"issuer": issuer.lookup}, clock=lambda: now[0])
    assert source.get() is first
    now[0] = s3_bucket.AGAIN_SECONDS - 1
    assert source.get() is first
    assert len(issuer.answers) == 2
    now[0] += 1
    assert source.get() is first
    now[0] += REFRESH_RETRY_SECONDS
    assert source.get() is second


def test_secrets_are_not_shown():
    options = BucketOptions(url=StoreUrl.parse("s3://bucket"), credentials=CREDENTIALS)
    assert CREDENTIALS.secret_access_key not in repr(options)


def test_neither_trio_nor_the_broker_is_imported():
    program = (
        "import sys, kafscale.spark.bucket.s3_bucket, kafscale.spark.bucket.decode\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('trio', 'anyio')"
        " or name.startswith(('kafscale.api', 'kafscale.server', 'kafscale.cluster', 'kafscale.broker'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
