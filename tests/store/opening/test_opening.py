import attrs
import pytest

from kafscale.config import Settings, StoreEncryption, StoreUrl
from kafscale.metrics import Metrics
from kafscale.store.memory import MemoryStore
from kafscale.store.opening.opening import open_store, wrap_store
from kafscale.store.s3.store import S3Settings, S3Store
from kafscale.store.wrappers.hedging import HedgingStore
from kafscale.store.wrappers.limiter import LimitedStore, WorkClass
from kafscale.store.wrappers.metered import MeteredStore, StoreMetrics
from kafscale.store.wrappers.multipart import PART_BYTES, MultipartStore
from kafscale.store.wrappers.retrying import RetryingStore
from kafscale.testing.faulty_store import FaultyStore, On
from tests.devtools.fakes.memory_broker import memory_parts
from tests.devtools.fakes.s3_server import CREDENTIALS, open_s3_server
from tests.store.s3_transport import ServiceTransport


def opened(raw, **settings):
    return wrap_store(raw, Settings(**settings), StoreMetrics.register(Metrics()))


def s3_store():
    settings = S3Settings(bucket="bucket", endpoint="http://s3.test", region="us-east-1")
    return S3Store(settings, credentials=CREDENTIALS, transport=ServiceTransport())


def layers(store):
    """The wrappers' classes, outermost first."""
    found = []
    while hasattr(store, "store"):
        found.append(type(store))
        store = store.store
    return found


COMMON = [RetryingStore, LimitedStore, MeteredStore]


def test_s3_has_parts_in_every_view_and_hedges_where_produces_wait():
    views = opened(s3_store())
    assert layers(views.acknowledge) == [MultipartStore, RetryingStore, LimitedStore, HedgingStore, MeteredStore]
    assert layers(views.fetch) == layers(views.background) == [MultipartStore, *COMMON]


@pytest.mark.parametrize(
    ("raw", "off"), [(MemoryStore, {}), (s3_store, {"s3_hedge_percentile": 0, "s3_multipart_bytes": 0})]
)
def test_disabled_or_useless_wrappers_are_left_out(raw, off):
    views = opened(raw(), **off)
    assert layers(views.acknowledge) == layers(views.fetch) == layers(views.background) == COMMON


async def test_each_view_works_in_its_class():
    faulty = FaultyStore(MemoryStore())
    store = opened(faulty)
    in_use = []

    async def look(call):
        in_use.append([work_class for work_class, count in store.prefetch.limiter.statistics().in_use.items() if count])

    faulty.rule(On(), look)
    await store.acknowledge.put("key", [b"data"])
    await store.fetch.get("key")
    await store.prefetch.get_range("key", 0, 1)
    await store.background.delete(["key"])
    assert in_use == [[WorkClass.ACKNOWLEDGE], [WorkClass.FETCH], [WorkClass.PREFETCH], [WorkClass.BACKGROUND]]


@pytest.mark.parametrize("text", ["AES256", "aws:kms:my-key"])
async def test_every_view_writes_encrypted_whole_and_in_parts(text, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret_access_key)
    async with open_s3_server() as server:
        server.service.kms_keys = frozenset({"my-key"})
        settings = Settings(
            store=StoreUrl.parse("s3://bucket/p"),
            s3_endpoint=server.endpoint,
            s3_create_bucket=True,
            s3_multipart_bytes=PART_BYTES,
            s3_sse=StoreEncryption.parse(text),
        )
        store = await open_store(settings, Metrics())
        for name, view in attrs.asdict(store, recurse=False).items():
            if name in ("acknowledge", "fetch", "background"):
                await view.put(f"{name}/put", [b"1"])
                etag = await view.put_if_absent(f"{name}/conditional", [b"2"])
                await view.put_if_match(f"{name}/conditional", [b"3"], etag)
        await store.acknowledge.put_if_absent("acknowledge/parts", [bytes(PART_BYTES + 1)])
        await store.aclose()
        assert server.counters.requests["UploadPart"] == 2
        written = server.service.buckets["bucket"]
        assert len(written) == 7
        assert {each.encryption for each in written.values()} == {text}


def test_replacing_the_store_of_broker_parts_replaces_its_views() -> None:
    """Tests that replaced the store with a faulty one ran on the old one."""
    store = MemoryStore()
    assert attrs.evolve(memory_parts(), store=store).store_views().fetch is store
