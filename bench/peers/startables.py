"""The brokers that a run starts, by the names in `bench.peers.names`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import click

from bench.brokers import OwnBroker, RunningBroker, Startable
from bench.options import RunOptions
from bench.peers.endpoint import Endpoint
from bench.peers.kafka import DEFAULT, DURABLE, KafkaBroker
from bench.peers.names import (
    BEFORE,
    BEFORE_OF,
    KAFKA_DEFAULT,
    KAFKA_DURABLE,
    KAFKA_ON_MEMORY,
    OWN,
    OWN_MEMORY,
    OWN_MINIO,
    OWN_ON_MEMORY,
    OWN_TWO,
)
from bench.secured.sasl_ssl import SaslSsl
from tests.devtools.external.s3_processes import minio_server

MEMORY_STORE = ("--store", "memory:4GiB")
MEMORY_FILES = Path("/dev/shm")  # a file system in memory
SERVE_OPTIONS = ("--segment-delete-delay", "1s")  # as Kafka's here, or the topics of earlier loads would fill the disk


def all_startables(options: RunOptions, before: Path | None = None) -> Iterator[Startable]:
    """All brokers, and the endpoint. What is not to be had is left out, and that is said."""
    yield from own_brokers(options, before)
    if shutil.which("minio"):
        yield _own(OWN_MINIO, (), options, MinioBackedBroker)
    else:
        click.echo(f"{OWN_MINIO} is left out: there is no minio on the PATH", err=True)
    yield kafka_durable(options.directory)
    yield KafkaBroker(KAFKA_DEFAULT, DEFAULT, options.directory)
    yield from options.peers
    yield Endpoint()


def secured_startables(options: RunOptions, security: SaslSsl, before: Path | None = None) -> Sequence[Startable]:
    """Return our broker, alone and as two processes, that of `before`, and Apache Kafka, over TLS and with SASL.

    Where there is a file system in memory, one of each also has its files there.
    """
    own = [own_broker for own_broker in own_brokers(options, before) if own_broker.name in (OWN, BEFORE)]
    own.append(attrs.evolve(own[0], name=OWN_TWO, processes_count=2))
    kafka = [kafka_durable(options.directory), KafkaBroker(KAFKA_DEFAULT, DEFAULT, options.directory)]
    if MEMORY_FILES.is_dir():
        own.append(attrs.evolve(own[0], name=OWN_ON_MEMORY, directory=MEMORY_FILES))
        kafka.append(KafkaBroker(KAFKA_ON_MEMORY, DEFAULT, MEMORY_FILES))
    else:
        click.echo(f"{OWN_ON_MEMORY} is left out: there is no {MEMORY_FILES}", err=True)
    brokers: Sequence[OwnBroker | KafkaBroker] = [*own, *kafka]
    return [attrs.evolve(broker, security=security) for broker in brokers]


def own_brokers(options: RunOptions, before: Path | None = None) -> Sequence[OwnBroker]:
    """Return our brokers: with a directory as the bucket, and with a bucket in memory; and both of `before`, another
    checkout.
    """
    own = [_own(OWN, (), options), _own(OWN_MEMORY, MEMORY_STORE, options)]
    if before is None:
        return own
    return [*own, *(attrs.evolve(startable, name=BEFORE_OF[startable.name], checkout=before) for startable in own)]


def kafka_durable(directory: Path | None) -> KafkaBroker:
    """Apache Kafka that syncs each batch."""
    return KafkaBroker(KAFKA_DURABLE, DURABLE, directory)


def _own(name: str, store: Sequence[str], options: RunOptions, kind: type[OwnBroker] = OwnBroker) -> OwnBroker:
    serve_options = (*store, *SERVE_OPTIONS, *options.broker_options)
    return kind(name=name, options=serve_options, directory=options.directory)


@attrs.frozen(kw_only=True)
class MinioBackedBroker(OwnBroker):
    """A broker with a MinIO of its own, which runs as long as it does."""

    @contextmanager
    def running(self) -> Iterator[RunningBroker]:
        with minio_server() as server:
            environ = {
                "AWS_ACCESS_KEY_ID": server.credentials.access_key_id,
                "AWS_SECRET_ACCESS_KEY": server.credentials.secret_access_key,
            }
            store = ("--store", "s3://bench", "--s3-endpoint", server.endpoint, "--s3-create-bucket")
            broker = OwnBroker(
                name=self.name, options=(*store, *self.options), directory=self.directory, environ=environ
            )
            with broker.running() as running:
                yield running
