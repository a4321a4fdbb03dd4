"""One flush: build the segment, upload `.kfs` and `.index` in parallel, commit. Holds no lock.

Only this broker writes its keys, so an object that exists is from an earlier attempt: docs/discussion/rooms/log.md.
After a suspension `check_lead_first` looks, since readers would see late objects until the other broker has written. If
the commit acknowledges, `check_lead` is asked before it: another broker may have listed the bucket earlier.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import attrs
import trio

from kafscale.buffers import Buffer, size_of
from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.concurrency.nurseries import ungrouped
from kafscale.errors import DamagedObject, Fenced, NewerVersion, PreconditionFailed, StoreUnavailable
from kafscale.formats.footer_reading import read_footer, read_index
from kafscale.formats.manifest import FINGERPRINT_UNKNOWN, Segment, fingerprint, segment_of
from kafscale.formats.segment import Footer, Identity, body_crc, build_footer, encode_footer, encode_header
from kafscale.log.partition.partition import FlushPlan, Partition
from kafscale.log.partition.tail import TailBatch
from kafscale.log.read.reader import LogReader
from kafscale.store.base import ObjectStore
from kafscale.store.paths import SegmentKey
from kafscale.wire.control_records import MARKER_BATCH_MAX_BYTES

logger = logging.getLogger(__name__)

CRC_IN_THREAD_BYTES = 8 << 20  # below this CRC-32C takes less than a thread hop is worth
READ_BACK_MAX_BYTES = 32 << 20  # what flushes that read their batches back from the WAL hold outside of the pool


@attrs.frozen
class _Stored:
    footer: Footer
    segment: Segment


@attrs.define(eq=False, kw_only=True, repr=False)
class Uploader:
    """Uploads flush plans. `check_lead` and `check_lead_first` raise Fenced if another broker has taken over."""

    store: ObjectStore
    reader: LogReader
    deadline_seconds: float = math.inf
    check_lead_first: Callable[[], Awaitable[None]] | None = None
    check_lead: Callable[[], Awaitable[None]] | None = None
    _read_back: ByteBudget = attrs.field(factory=lambda: ByteBudget(READ_BACK_MAX_BYTES), init=False)

    async def flush(self, partition: Partition, plan: FlushPlan) -> None:
        """Upload the plan and commit it. Raises StoreError, Fenced."""
        if any(batch.lease is None for batch in plan.batches):
            async with self._read_back.held(plan.size_bytes):  # more may be spilled until it is granted
                if not partition.closed:
                    await self._flush(partition, plan)
        else:
            await self._flush(partition, plan)

    async def _flush(self, partition: Partition, plan: FlushPlan) -> None:
        slices = await self.reader.read_batches(plan.batches)
        try:
            footer = await _make_footer(partition, plan, slices.buffers)
            if self.check_lead_first is not None:
                await self.check_lead_first()
            stored = await self._upload_in_time(partition, footer, slices.buffers)
        finally:
            slices.release()
        if self.check_lead is not None:
            await self.check_lead()
        if partition.closed:
            logger.info("%s was closed while %s was uploaded", partition, stored.segment.kfs_key)
        elif _content(stored.footer) == _content(footer):
            self._commit(partition, plan, stored)
        else:
            await self._adopt(partition, stored)

    async def _upload_in_time(self, partition: Partition, footer: Footer, body: Sequence[Buffer]) -> _Stored:
        """Upload both objects within one deadline. The next attempt finds what has arrived by then."""
        key = segment_key_of(partition, footer.identity)
        with trio.move_on_after(self.deadline_seconds):
            while True:
                try:
                    return await self._upload(key, footer, body)
                except NewerVersion:
                    raise
                except DamagedObject as exc:
                    generation = key.generation + 1
                    logger.warning("%s: %s; its batches go to generation %d", partition, exc, generation)
                    footer = attrs.evolve(footer, identity=attrs.evolve(footer.identity, generation=generation))
                    key = segment_key_of(partition, footer.identity)
        raise StoreUnavailable(f"{key.key} and its .index were not uploaded in {self.deadline_seconds:g} s")

    async def _upload(self, key: SegmentKey, footer: Footer, body: Sequence[Buffer]) -> _Stored:
        """Put both objects at once. Returns what is at the key now: ours, or that of an earlier attempt.

        Raises DamagedObject if a damaged `.kfs` is there.
        """
        encoded = encode_footer(footer)
        parts = [encode_header(footer), *body, encoded]
        stored, told, index_is_ours = footer, FINGERPRINT_UNKNOWN, False

        async def put_kfs() -> None:
            nonlocal stored, told
            try:
                told = fingerprint(size_of(parts), await self.store.put_if_absent(key.key, parts))
            except PreconditionFailed:
                stored = await self._resolve(key, footer)

        async def put_index() -> None:
            nonlocal index_is_ours
            with suppress(PreconditionFailed):
                await self.store.put_if_absent(key.of_kind("index").key, [encoded])
                index_is_ours = True

        with ungrouped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(put_kfs)
                nursery.start_soon(put_index)
        # An `.index` may be of an attempt whose `.kfs` is not the one in the bucket; that one never changes.
        if (stored != footer or not index_is_ours) and await read_index(self.store, key) != stored:
            await self.store.put(key.of_kind("index").key, [encode_footer(stored)])
        return _Stored(stored, segment_of(key, stored, fingerprint=told))

    async def _resolve(self, key: SegmentKey, ours: Footer) -> Footer:
        """Return the footer of an existing `.kfs` if this broker wrote it."""
        stored = await read_footer(self.store, key)
        if stored.identity.leader_epoch > ours.identity.leader_epoch:
            raise Fenced(
                f"{key.key} was written by a broker with epoch {stored.identity.leader_epoch}, "
                f"this one has {ours.identity.leader_epoch}: it has been superseded"
            )
        return stored

    def _commit(self, partition: Partition, plan: FlushPlan, stored: _Stored) -> None:
        self.reader.footers.put(stored.segment, stored.footer)
        partition.commit_flush(plan, stored.segment, stored.footer)

    async def _adopt(self, partition: Partition, stored: _Stored) -> None:
        """Commit the batches that an earlier attempt has written under this key."""
        name, footer = stored.segment.kfs_key, stored.footer
        logger.warning("%s: adopting %s, which an earlier attempt had written", partition, name)
        written = partition.plan_until(footer.last_offset)
        same = written is not None and await self._content_crc(written) == footer.identity.body_crc
        if partition.closed:
            return
        if same:
            assert written is not None
            self._commit(partition, written, stored)
        else:
            raise Fenced(f"{name} holds other records than this broker has: another one with the same epoch wrote it")

    async def _content_crc(self, plan: FlushPlan) -> int:
        slices = await self.reader.read_batches(plan.batches)
        try:
            return await crc_of(slices.buffers, plan.size_bytes)
        finally:
            slices.release()


def _content(footer: Footer) -> tuple[int, int]:
    return footer.last_offset, footer.identity.body_crc


async def _make_footer(partition: Partition, plan: FlushPlan, body: Sequence[Buffer]) -> Footer:
    identity = Identity(
        topic_id=partition.topic_id,
        partition=partition.index,
        base_offset=plan.base_offset,
        generation=0,
        leader_epoch=plan.leader_epoch,
        created_ms=time.time_ns() // 1_000_000,
        batch_count=len(plan.batches),
        body_bytes=plan.size_bytes,
        max_timestamp_ms=max(batch.max_timestamp_ms for batch in plan.batches),
        body_crc=await crc_of(body, plan.size_bytes),
    )
    return build_footer(
        identity,
        plan.batches,
        producers=plan.producers,
        producers_from=plan.producers_from,
        epochs=plan.epochs,
        aborted=plan.aborted,
        open_transactions=plan.open_transactions,
        marker_offsets=[batch.base_offset for batch in plan.batches if may_be_marker(batch)],
    )


def may_be_marker(batch: TailBatch) -> bool:
    """Tell whether a batch may be a marker, which is small, and has one offset."""
    return (
        batch.is_transactional and batch.last_offset == batch.base_offset and batch.size_bytes <= MARKER_BATCH_MAX_BYTES
    )


def segment_key_of(partition: Partition, identity: Identity) -> SegmentKey:
    return partition.segment_key(identity.base_offset, epoch=identity.leader_epoch, generation=identity.generation)


async def crc_of(buffers: Sequence[Buffer], size_bytes: int) -> int:
    if size_bytes >= CRC_IN_THREAD_BYTES:
        return await trio.to_thread.run_sync(body_crc, buffers)
    return body_crc(buffers)
