"""An endpoint that only answers: it takes Produce requests, looks for their partitions, and says that all is well.

What a client reaches against it is the client's own ceiling, on this machine, with the other core to itself.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from bench.brokers import RunningBroker
from bench.peers.names import ENDPOINT
from bench.points import TOPIC
from kafscale.config import Address
from kafscale.wire.messages.records import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kafscale.wire.messages.topics import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from tests.devtools.fakes.scripted_broker import ScriptedBroker

PARTITION_COUNT = 16
SIZE_BYTES = 4
MAX_FRAME_BYTES = 8 << 20


class Endpoint:
    """Runs in a process of its own."""

    name = ENDPOINT

    @contextmanager
    def running(self) -> Iterator[RunningBroker]:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there,), daemon=True)
        process.start()
        try:
            yield AnsweringBroker(
                name=ENDPOINT, address=Address("127.0.0.1", here.recv()), pid=process.pid, metrics_url=None
            )
        finally:
            process.terminate()
            process.join()


class AnsweringBroker(RunningBroker):
    """Answer with one topic, always."""

    def create_topic(self, partitions: int) -> None:
        """Return the partitions: as many as a load can want."""

    def remove_topic(self) -> None:
        """Forget: this endpoint holds nothing."""


def _serve(pipe: Connection) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    broker = ScriptedBroker(_handlers(listener.getsockname()[1]))
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection, broker), daemon=True).start()


def _answer(connection: socket.socket, broker: ScriptedBroker) -> None:
    """One frame after the other into one buffer: nothing is kept."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(MAX_FRAME_BYTES))
    while _receive(connection, buffer[:SIZE_BYTES]):
        size = int.from_bytes(buffer[:SIZE_BYTES], "big")
        if not _receive(connection, buffer[:size]):
            return
        connection.sendall(b"".join(broker.answer(buffer[:size])))
        broker.requests.clear()
        broker.seen.clear()


def _receive(connection: socket.socket, into: memoryview) -> bool:
    while into:
        count = connection.recv_into(into)
        if not count:
            return False
        into = into[count:]
    return True


def _handlers(port: int) -> Mapping[type, Callable[[Any], Any]]:
    topic_id = os.urandom(16)
    partitions = [
        MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1])
        for index in range(PARTITION_COUNT)
    ]

    def metadata(request: MetadataRequest) -> MetadataResponse:
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)],
            controller_id=1,
            topics=[MetadataResponseTopic(name=TOPIC, topic_id=topic_id, partitions=partitions)],
        )

    def produce(request: ProduceRequest) -> ProduceResponse:
        responses = [
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[PartitionProduceResponse(index=data.index) for data in topic.partition_data],
            )
            for topic in request.topic_data
        ]
        return ProduceResponse(responses=responses)

    def init_producer_id(request: InitProducerIdRequest) -> InitProducerIdResponse:
        return InitProducerIdResponse(producer_id=1, producer_epoch=0)

    return {MetadataRequest: metadata, ProduceRequest: produce, InitProducerIdRequest: init_producer_id}
