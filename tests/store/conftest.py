"""The stores that the contract suite runs against: one entry in STORES each."""

import shutil
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, aclosing, asynccontextmanager
from functools import cache, partial
from pathlib import Path
from random import Random

import pytest

from kafscale.config import Settings, StoreEncryption
from kafscale.metrics import Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.file.store import FileStore
from kafscale.store.memory import MemoryStore
from kafscale.store.opening.opening import wrap_store
from kafscale.store.s3.store import S3Settings, S3Store
from kafscale.store.wrappers.limiter import LimitedStore, StoreLimiter, WorkClass
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.store.wrappers.multipart import MultipartStore
from kafscale.store.wrappers.retrying import RetryingStore, RetryPolicy
from kafscale.testing.faulty_store import FaultyStore
from tests.devtools.external.s3_processes import S3Process, minio_server, moto_server
from tests.devtools.fakes.s3_server import CREDENTIALS, open_s3_server


@asynccontextmanager
async def open_file_store(path: Path) -> AsyncIterator[ObjectStore]:
    async with aclosing(await FileStore.open(path)) as store:
        yield store


@asynccontextmanager
async def open_memory_store(path: Path) -> AsyncIterator[ObjectStore]:
    async with aclosing(MemoryStore()) as store:
        yield store


@asynccontextmanager
async def open_limited_memory_store(path: Path) -> AsyncIterator[ObjectStore]:
    """With a limit it keeps large objects in blocks."""
    async with aclosing(MemoryStore(max_bytes=1 << 30)) as store:
        yield store


@asynccontextmanager
async def open_s3_store(
    path: Path, *, tls: bool = False, encryption: StoreEncryption | None = None, base_path: str = ""
) -> AsyncIterator[ObjectStore]:
    """The stand-in server, which demands what S3 does."""
    async with open_s3_server(tls=tls) as server:
        server.service.least_part_bytes = 0
        server.service.base_path = base_path
        if encryption is not None:
            server.service.kms_keys = frozenset({encryption.key})
        settings = S3Settings(
            bucket="bucket",
            prefix="pre fix/of+it",
            endpoint=server.endpoint,
            region="us-east-1",
            ca_file=str(server.certificate.certificate_file) if server.certificate else None,
            encryption=encryption,
        )
        async with aclosing(S3Store(settings, credentials=CREDENTIALS)) as store:
            await store.create_bucket()
            yield store


@asynccontextmanager
async def open_bucket(process: S3Process) -> AsyncIterator[ObjectStore]:
    """A new bucket at a server that other tests use too, encrypted if that has a key."""
    settings = S3Settings(
        bucket=f"bucket-{uuid.uuid4()}",
        endpoint=process.endpoint,
        region="us-east-1",
        encryption=StoreEncryption("aws:kms", process.kms_key) if process.kms_key else None,
    )
    async with aclosing(S3Store(settings, credentials=process.credentials)) as store:
        await store.create_bucket()
        yield store


@asynccontextmanager
async def open_wrapped_store(path: Path) -> AsyncIterator[ObjectStore]:
    """As the broker has it, at a limit of one: an operation that needs two tokens hangs."""
    settings = Settings(s3_concurrency=1)
    async with aclosing(wrap_store(MemoryStore(), settings, StoreMetrics.register(Metrics()))) as opened:
        yield opened.acknowledge


@asynccontextmanager
async def open_multipart_store(path: Path) -> AsyncIterator[ObjectStore]:
    """Large objects in parts, small ones at once; at a limit of one too."""
    metrics = StoreMetrics.register(Metrics())
    limiter = StoreLimiter(1, metrics)
    async with open_s3_store(path) as raw:
        assert isinstance(raw, S3Store)
        yield MultipartStore(
            store=RetryingStore(LimitedStore(raw, limiter), RetryPolicy(), Random(0), metrics),
            uploads=raw,
            limiter=limiter,
            work_class=WorkClass.ACKNOWLEDGE,
            metrics=metrics,
            threshold_bytes=1000,
            part_bytes=1 << 20,
        )


@asynccontextmanager
async def open_faulty_store(path: Path) -> AsyncIterator[ObjectStore]:
    async with aclosing(FaultyStore(MemoryStore())) as store:
        yield store


# Each gives an empty bucket; the path is an empty directory that it may use.
STORES: dict[str, Callable[[Path], AbstractAsyncContextManager[ObjectStore]]] = {
    "file": open_file_store,
    "memory": open_memory_store,
    "memory-limited": open_limited_memory_store,
    "s3": open_s3_store,
    "s3-tls": partial(open_s3_store, tls=True),
    "s3-gateway": partial(open_s3_store, base_path="/storage/v1+x/s3 ü"),
    "s3-encrypted": partial(open_s3_store, encryption=StoreEncryption("aws:kms", "key")),
    "wrapped": open_wrapped_store,
    "multipart": open_multipart_store,
    "faulty": open_faulty_store,
}

# Servers that are not ours: one process each for all tests.
S3_PROCESSES: dict[str, Callable[[], AbstractContextManager[S3Process]]] = {"s3-moto": moto_server}
if shutil.which("minio"):
    S3_PROCESSES["s3-minio"] = minio_server
    S3_PROCESSES["s3-minio-encrypted"] = partial(minio_server, kms_key="kafscale-test")


@pytest.fixture(scope="session")
def s3_process():
    """Starts a server at its first use."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(S3_PROCESSES[name]()))


@pytest.fixture(params=[*STORES, *S3_PROCESSES])
async def store(request, tmp_path, s3_process):
    """An empty bucket of each implementation and behind each wrapper."""
    name = request.param
    async with STORES[name](tmp_path) if name in STORES else open_bucket(s3_process(name)) as opened:
        yield opened
