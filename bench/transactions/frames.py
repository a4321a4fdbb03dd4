"""Requests of transactional producers, encoded beforehand but for what a transaction changes: id, epoch, sequence."""

from __future__ import annotations

import struct

import attrs

from bench.frames import CLIENT_ID, batch_of, produce_frame
from bench.points import Point
from kafscale.wire import codec
from kafscale.wire.batch_header import TRANSACTIONAL, set_crc
from kafscale.wire.frames import RequestHeader, request_frame
from kafscale.wire.messages.transactions import EndTxnRequest, EndTxnResponse

PRODUCE_VERSION = 12  # enrols the partition by itself; earlier ones need AddPartitionsToTxn (KIP-890)
END_TXN_VERSION = 5  # answers with the epoch of the next transaction

_CORRELATION_ID_AT = 8
_ATTRIBUTES_AT, _PRODUCER_AT = 21, 43  # in a batch
_attributes = struct.Struct(">h")
_producer = struct.Struct(">qhi")  # id, epoch, sequence
_correlation_id = struct.Struct(">i")
_HEAD_BYTES = 9  # size, correlation id, no tags


@attrs.frozen
class Producing:
    """The identity of a producer, as InitProducerId and EndTxn answer it."""

    producer_id: int
    epoch: int


@attrs.define(eq=False)
class ProduceTemplate:
    """A Produce of one batch to one partition, into which the rest is written before it is sent."""

    frame: bytearray
    record_count: int
    batch_bytes: int
    _batch: memoryview

    @classmethod
    def of(cls, point: Point, partition: int, transactional_id: str | None) -> ProduceTemplate:
        """Encode a batch; without a transactional id it is outside transactions."""
        batch = bytearray(batch_of(point))
        if transactional_id is not None:
            _attributes.pack_into(batch, _ATTRIBUTES_AT, TRANSACTIONAL)
        frame = bytearray(
            produce_frame(0, partition, batch, version=PRODUCE_VERSION, transactional_id=transactional_id)
        )
        at = frame.index(batch)
        return cls(frame, point.record_count, len(batch), memoryview(frame)[at : at + len(batch)])

    def of_producer(self, correlation_id: int, producing: Producing, sequence: int) -> bytearray:
        """Return the frame of this producer's batch, which lasts until the next one is asked for."""
        _correlation_id.pack_into(self.frame, _CORRELATION_ID_AT, correlation_id)
        _producer.pack_into(self._batch, _PRODUCER_AT, producing.producer_id, producing.epoch, sequence)
        set_crc(self._batch)
        return self.frame


def end_txn_frame(correlation_id: int, transactional_id: str, producing: Producing) -> bytes:
    """An EndTxn that commits."""
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producing.producer_id,
        producer_epoch=producing.epoch,
        committed=True,
    )
    header = RequestHeader(EndTxnRequest.API_KEY, END_TXN_VERSION, correlation_id, CLIENT_ID)
    return b"".join(request_frame(header, codec.encode(request, END_TXN_VERSION), flexible_header=True))


def end_txn_reply(reply: memoryview) -> tuple[int, Producing]:
    """The error in a reply, and who the producer is in its next transaction."""
    response = codec.decode(EndTxnResponse, END_TXN_VERSION, reply[_HEAD_BYTES:])
    return response.error_code, Producing(response.producer_id, response.producer_epoch)
