"""`python -m bench.restore`: starts of a broker on a bucket of many small segments, without a checkpoint and with one.

The bucket is made of real objects in a directory. The file store serves it from there, and the S3 stand-in of
`kafscale.testing` from the memory of a process of its own. The first start on each store has no checkpoint of the
manifests; it writes one when it stops, with which the second one starts. Options after `--` go to `kafscale serve`.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click
import trio
from rich.console import Console
from rich.table import Table

from bench import processes
from bench.brokers import OwnBroker
from bench.places import LOCAL_RESULTS
from bench.report import machine
from kafscale import __version__
from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.config import Limits, Settings
from kafscale.store.paths import SegmentKey
from tests.devtools.fakes.s3_server import CREDENTIALS, S3Server
from tests.devtools.fakes.segment_objects import make_batches, version_2_objects
from tests.devtools.processes.process import peak_rss_mib, rss_mib

if TYPE_CHECKING:
    from bench.brokers import RunningBroker

BUCKET = "bench"
STORES = ("file", "s3")
RECORDS_PER_SEGMENT = 3


@attrs.frozen(kw_only=True)
class Shape:
    """The contents of the bucket."""

    topics: int
    partitions: int
    segments: int

    def topic_id(self, topic: int) -> bytes:
        return (topic + 1).to_bytes(16, "big")

    def partitions_of(self, topic: int) -> int:
        return self.partitions // self.topics + (topic < self.partitions % self.topics)


@attrs.frozen(kw_only=True)
class Start:
    """One start, and what it took. `restore_seconds` is without the process's own start and the topics' metadata."""

    store: str
    checkpoint: bool
    ready_seconds: float
    restore_seconds: float
    cpu_seconds: float
    footer_reads: int
    gets: int
    lists: int
    rss_mib: float
    peak_rss_mib: float


@click.command()
@click.option("--topics", default=100, show_default=True)
@click.option("--partitions", default=10_000, show_default=True, help="Of all topics together.")
@click.option("--segments", default=10, show_default=True, help="Of each partition.")
@click.option("--latency-ms", default=20.0, show_default=True, help="Of each request to the S3 stand-in.")
@click.option("--store", "stores", multiple=True, type=click.Choice(STORES), default=STORES, show_default=True)
@click.option("--directory", type=click.Path(path_type=Path), help="Where bucket and brokers' directories are made.")
@click.argument("broker_options", nargs=-1, type=click.UNPROCESSED)
def main(
    *,
    topics: int,
    partitions: int,
    segments: int,
    latency_ms: float,
    stores: Sequence[str],
    directory: Path | None,
    broker_options: Sequence[str],
) -> None:
    """Start a broker on each store twice, and show what it took."""
    shape = Shape(topics=topics, partitions=partitions, segments=segments)
    starts: list[Start] = []
    with tempfile.TemporaryDirectory(prefix="kafscale-bench-", dir=directory) as made:
        bucket = Path(made) / "bucket"
        click.echo(f"making {2 * partitions * segments:,} objects")
        make_bucket(bucket, shape)
        for store in stores:
            data_dir = Path(made) / store
            trio.run(register_topics, data_dir, shape)
            if store == "file":
                starts += run_starts(store, data_dir, [f"--store=file:{bucket}", *broker_options])
                shutil.rmtree(bucket / "_kafscale", ignore_errors=True)
            else:
                with stand_in(bucket, latency_ms / 1000) as endpoint:
                    options = [f"--store=s3://{BUCKET}", f"--s3-endpoint={endpoint}", *broker_options]
                    starts += run_starts(store, data_dir, options)
        show(starts, shape)
        click.echo(save(starts))


# ---- the bucket -----------------------------------------------------------------------------------------------------


def make_bucket(root: Path, shape: Shape) -> None:
    """Files are written without syncs: the file store would take an hour."""
    for topic in range(shape.topics):
        for partition in range(shape.partitions_of(topic)):
            for number in range(shape.segments):
                key = SegmentKey(
                    topic=_topic_name(topic),
                    topic_id=shape.topic_id(topic),
                    partition=partition,
                    base_offset=number * RECORDS_PER_SEGMENT,
                )
                batches = make_batches(key.base_offset, 1, records_per_batch=RECORDS_PER_SEGMENT)
                objects = version_2_objects(key, batches)
                path = root / key.key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(objects.kfs)
                (root / key.of_kind("index").key).write_bytes(objects.index)


def _topic_name(topic: int) -> str:
    return f"topic-{topic:05d}"


async def register_topics(data_dir: Path, shape: Shape) -> None:
    """Register topics as the broker that made this bucket would have them."""
    data_dir.mkdir()
    async with SqliteMetadataStore.open(data_dir / "metadata.db") as metadata:
        topics = TopicRegistry(
            store=metadata, settings=Settings(limits=Limits(max_topics_count=1 << 20, max_partitions_count=1 << 20))
        )
        await topics.load()
        for topic in range(shape.topics):
            wanted = NewTopic(
                name=_topic_name(topic),
                partition_count=shape.partitions_of(topic),
                overrides={"retention.ms": "-1"},
                topic_id=shape.topic_id(topic),
            )
            await topics.create([wanted], validate_only=False)


@contextmanager
def stand_in(bucket: Path, latency_seconds: float) -> Iterator[str]:
    """The S3 stand-in with these objects, in a process of its own; gives its endpoint."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(bucket, latency_seconds, theirs))
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def _serve(root: Path, latency_seconds: float, started: Connection) -> None:
    async def serve() -> None:
        server = S3Server(latency_seconds=latency_seconds)
        server.service.fill(
            BUCKET, {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("segment-*")}
        )
        await server.listen()
        started.send(server.endpoint)
        await server.run()

    trio.run(serve)


# ---- the starts -----------------------------------------------------------------------------------------------------


def run_starts(store: str, data_dir: Path, options: Sequence[str]) -> Iterator[Start]:
    """One without a checkpoint, one with that which the first has written."""
    environ = {
        "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_access_key,
    }
    broker = OwnBroker(options=options, data_dir=data_dir, environ=environ)
    for checkpoint in (False, True):
        click.echo(f"starting on {store} {'with' if checkpoint else 'without'} a checkpoint")
        began = time.monotonic()
        with broker.running() as running:
            yield _measured(running, store, checkpoint=checkpoint, ready_seconds=time.monotonic() - began)


def _measured(running: RunningBroker, store: str, *, checkpoint: bool, ready_seconds: float) -> Start:
    assert running.pid is not None
    samples = running.samples()

    def count(operation: str) -> int:
        prefix = f'kafscale_store_operations_total{{operation="{operation}'
        return int(sum(value for name, value in samples.items() if name.startswith(prefix)))

    return Start(
        store=store,
        checkpoint=checkpoint,
        ready_seconds=ready_seconds,
        restore_seconds=samples["kafscale_start_restore_seconds"],
        cpu_seconds=processes.cpu_seconds(running.pid),
        footer_reads=int(samples["kafscale_start_footer_reads"]),
        gets=count("get"),
        lists=count("list"),
        rss_mib=rss_mib(running.pid),
        peak_rss_mib=peak_rss_mib(running.pid),
    )


def show(starts: Sequence[Start], shape: Shape) -> None:
    """One row per start."""
    segments = shape.partitions * shape.segments
    table = Table(title=f"start: {shape.partitions:,} partitions of {shape.topics} topics, {segments:,} segments")
    for field in attrs.fields(Start):
        table.add_column(field.name.replace("_", " "), justify="right")
    for start in starts:
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in attrs.astuple(start)))
    Console(width=150).print(table)


def save(starts: Sequence[Start]) -> Path:
    LOCAL_RESULTS.mkdir(parents=True, exist_ok=True)
    path = LOCAL_RESULTS / f"restore-{time.strftime('%Y%m%d-%H%M%S')}.json"
    content = {
        "version": __version__,
        "machine": machine(),
        "options": click.get_current_context().params,
        "results": [attrs.asdict(start) for start in starts],
    }
    path.write_text(json.dumps(content, indent=1, default=str) + "\n")
    return path


if __name__ == "__main__":
    main()
