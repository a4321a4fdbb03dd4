from contextlib import aclosing, asynccontextmanager

import attrs
import pytest
import trio

from kafscale.config import StoreEncryption
from kafscale.errors import NoCredentials, NoPermission, PreconditionFailed, StartupError, StoreUnavailable
from kafscale.store.memory import MemoryStore
from kafscale.store.opening.probe import check_usable, startup_errors
from kafscale.store.s3.store import S3Settings, S3Store
from tests.devtools.fakes.s3_server import CREDENTIALS, ErrorReply, S3Server, open_s3_server


@asynccontextmanager
async def open_store(server, **settings):
    settings = {"bucket": "bucket", "endpoint": server.endpoint, "region": "us-east-1", **settings}
    credentials = settings.pop("credentials", CREDENTIALS)
    async with aclosing(S3Store(S3Settings(**settings), credentials=credentials)) as store:
        yield store


async def refusal(store):
    """The one line that a start with this store fails with."""
    with pytest.raises(StartupError) as caught:
        await check_usable(store)
    message = str(caught.value)
    assert "\n" not in message
    return message


async def test_probing_a_good_store_succeeds_and_leaves_no_object(store):
    await check_usable(store)
    async with aclosing(store.list("")) as pages:
        assert [page async for page in pages] == []


async def test_a_missing_bucket_is_named():
    async with open_s3_server() as server, open_store(server, bucket="absent") as store:
        assert "s3://absent" in (message := await refusal(store))
        assert "--s3-create-bucket" in message
        await store.create_bucket()
        await store.create_bucket()  # that it exists is fine
        await check_usable(store)


async def test_a_wrong_region_is_refused_with_the_right_region():
    server = S3Server()
    server.service.region = "eu-west-1"
    async with open_s3_server(server), open_store(server) as store:
        assert "--s3-region eu-west-1" in await refusal(store)
        with pytest.raises(StartupError, match="region"), startup_errors():
            await store.create_bucket()


@pytest.mark.parametrize("wrong", [{"secret_access_key": "wrong"}, {"access_key_id": "wrong"}])
async def test_refused_credentials_are_called_so(wrong):
    async with open_s3_server() as server:
        server.service.buckets["bucket"] = {}
        async with open_store(server, credentials=attrs.evolve(CREDENTIALS, **wrong)) as store:
            assert "credentials" in await refusal(store)


async def test_a_refused_clock_is_not_called_refused_credentials():
    async with open_s3_server() as server, open_store(server) as store:
        await store.create_bucket()
        server.inject(ErrorReply(403, "RequestTimeTooSkewed"))
        message = await refusal(store)
        assert message.startswith("the object store refuses this machine's clock: list s3://bucket: 403 RequestTime")
        assert "NTP" in message
        assert "check" not in message


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NoCredentials("no S3 credentials found; set them"), "no S3 credentials found; set them"),
        (
            NoPermission("put x: denied"),
            "this user may not use the directory of the store: put x: denied; check its owner",
        ),
        (
            StoreUnavailable("no answer"),
            "the object store can't be reached: no answer; check --s3-endpoint .http or https",
        ),
    ],
)
def test_other_store_errors_are_not_reported_as_refusals(error, told):
    with pytest.raises(StartupError, match=f"^{told}"), startup_errors():
        raise error


async def test_an_endpoint_without_a_listener_is_named_in_the_refusal():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    async with open_store(S3Server(port=port)) as store:
        assert f"127.0.0.1:{port}" in (message := await refusal(store))
        assert "--s3-endpoint" in message


@pytest.mark.parametrize(
    ("fault", "expected"),
    [(ErrorReply(503, "SlowDown"), "not ready"), (ErrorReply(400, "InvalidArgument"), "can't be used")],
)
async def test_a_store_that_refuses_is_quoted(fault, expected):
    async with open_s3_server() as server, open_store(server) as store:
        server.inject(fault)
        assert expected in (message := await refusal(store))
        assert fault.code in message


async def test_an_untrusted_certificate_is_refused_with_the_ca_file_option():
    async with open_s3_server(tls=True) as server, open_store(server) as store:
        assert "certificate" in (message := await refusal(store))
        assert "--s3-ca-file" in message


async def test_a_ca_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "ca.pem").write_text("nonsense")
    for name in ("ca.pem", "absent.pem"):
        with pytest.raises(StartupError, match=name):
            S3Store(S3Settings(bucket="bucket", ca_file=str(tmp_path / name)))


async def test_a_store_that_ignores_conditions_is_refused():
    async with open_s3_server() as server, open_store(server) as store:
        await store.create_bucket()
        server.service.honours_conditions = False
        assert "If-None-Match" in await refusal(store)
        assert server.service.buckets["bucket"] == {}


async def test_a_store_that_can_do_no_conditional_writes_is_refused():
    async with open_s3_server() as server, open_store(server) as store:
        await store.create_bucket()
        server.inject(ErrorReply(501, "NotImplemented"), operation="PutObject")
        assert "501" in await refusal(store)


@pytest.mark.parametrize(
    ("keys", "wanted", "expected"),
    [
        (None, StoreEncryption("AES256"), "KMS is not configured"),
        (frozenset({"key"}), StoreEncryption("aws:kms", "another"), "kms:KeyNotFound"),
    ],
)
async def test_a_store_that_cannot_encrypt_is_refused_with_advice(keys, wanted, expected):
    async with open_s3_server() as server, open_store(server, encryption=wanted) as store:
        await store.create_bucket()
        server.service.kms_keys = keys
        assert expected in (message := await refusal(store))
        assert "check --s3-sse" in message
        assert "--s3-create-bucket" not in message


class IgnoresIfMatch(MemoryStore):
    async def put_if_match(self, key, parts, etag):
        return await self.put(key, parts)


class LosesWrites(MemoryStore):
    async def put_if_match(self, key, parts, etag):
        if parts != [b"third"]:
            raise PreconditionFailed(key)
        return etag


@pytest.mark.parametrize(("store_class", "expected"), [(IgnoresIfMatch, "ignores If-Match"), (LosesWrites, "loses")])
async def test_a_store_that_only_seems_to_decide_is_refused(store_class, expected):
    assert expected in await refusal(store_class())
