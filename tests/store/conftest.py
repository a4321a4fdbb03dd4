"""The stores that the contract suite runs against: one entry in STORES each."""

import shutil
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, aclosing, asynccontextmanager
from functools import cache, partial
from pathlib import Path
from random import Random

import pytest

from kafscale.metrics import Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.file import FileStore
from kafscale.store.limited import LimitedStore
from kafscale.store.limiter import StoreLimiter
from kafscale.store.memory import MemoryStore
from kafscale.store.metered import MeteredStore, StoreMetrics
from kafscale.store.retrying import RetryingStore, RetryPolicy
from kafscale.store.s3 import S3Settings, S3Store
from kafscale.testing.faulty_store import FaultyStore
from kafscale.testing.s3_processes import S3Process, minio_server, moto_server
from kafscale.testing.s3_server import CREDENTIALS, open_s3_server


@asynccontextmanager
async def open_file_store(path: Path) -> AsyncIterator[ObjectStore]:
    async with aclosing(await FileStore.open(path)) as store:
        yield store


@asynccontextmanager
async def open_memory_store(path: Path) -> AsyncIterator[ObjectStore]:
    async with aclosing(MemoryStore()) as store:
        yield store


@asynccontextmanager
async def open_s3_store(path: Path, *, tls: bool = False) -> AsyncIterator[ObjectStore]:
    """The stand-in server, which demands what S3 does."""
    async with open_s3_server(tls=tls) as server:
        settings = S3Settings(
            bucket="bucket",
            prefix="pre fix/of+it",
            endpoint=server.endpoint,
            region="us-east-1",
            ca_file=str(server.certificate.certificate_file) if server.certificate else None,
        )
        async with aclosing(S3Store(settings, credentials=CREDENTIALS)) as store:
            await store.create_bucket()
            yield store


@asynccontextmanager
async def open_bucket(process: S3Process) -> AsyncIterator[ObjectStore]:
    """A new bucket at a server that other tests use too."""
    settings = S3Settings(bucket=f"bucket-{uuid.uuid4()}", endpoint=process.endpoint, region="us-east-1")
    async with aclosing(S3Store(settings, credentials=process.credentials)) as store:
        await store.create_bucket()
        yield store


@asynccontextmanager
async def open_wrapped_store(path: Path) -> AsyncIterator[ObjectStore]:
    """As the broker has it, at a limit of one: an operation that needs two tokens hangs."""
    metrics = StoreMetrics.register(Metrics())
    limited = LimitedStore(MeteredStore(MemoryStore(), metrics), StoreLimiter(1, metrics))
    async with aclosing(RetryingStore(limited, RetryPolicy(), Random(0), metrics)) as store:
        yield store


@asynccontextmanager
async def open_faulty_store(path: Path) -> AsyncIterator[ObjectStore]:
    async with aclosing(FaultyStore(MemoryStore())) as store:
        yield store


# Each gives an empty bucket; the path is an empty directory that it may use.
STORES: dict[str, Callable[[Path], AbstractAsyncContextManager[ObjectStore]]] = {
    "file": open_file_store,
    "memory": open_memory_store,
    "s3": open_s3_store,
    "s3-tls": partial(open_s3_store, tls=True),
    "wrapped": open_wrapped_store,
    "faulty": open_faulty_store,
}

# Servers that are not ours: one process each for all tests.
S3_PROCESSES: dict[str, Callable[[], AbstractContextManager[S3Process]]] = {"s3-moto": moto_server}
if shutil.which("minio"):
    S3_PROCESSES["s3-minio"] = minio_server


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
