"""What verify finds wrong with what segments tell of transactions."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from kafscale.formats.footer_reading import read_footer
from kafscale.formats.segment import HEADER, Footer, encode_footer, encode_header
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction
from kafscale.log.check.verification import Verifier
from kafscale.log.repair.verify_transactions import TransactionCheck
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.testing.disk import MemoryDisk
from kafscale.wire.batch_header import CONTROL, TRANSACTIONAL, parse_header
from kafscale.wire.records import Record, build_batch
from tests.devtools.fakes.memory_log import memory_log
from tests.devtools.fakes.transactions import abort, commit, send

SETTINGS = {"flush_interval_seconds": 1e9}
ABORTED = AbortedTransaction(1, 0, 1, 2)  # in the first of `two_segments`, as the following one
OPEN = OpenTransaction(2, 0, 2)


class Bucket(MemoryStore):
    """A store, and the keys of its segments in order of offset."""

    keys: Sequence[SegmentKey] = ()


async def two_segments() -> Bucket:
    """One with an aborted transaction and one that is open at its end, and one with the end of that."""
    store = Bucket()
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log:
        partition = log.partition()
        await send(partition, b"a", producer_id=1)
        await abort(partition, producer_id=1)
        await send(partition, b"b", producer_id=2)
        await log.log.flusher.flush_all()
        await commit(partition, producer_id=2)
        await log.log.flusher.flush_all()
        store.keys = [each.key for each in partition.manifest.segments]
    return store


async def findings(store: Bucket) -> list[str]:
    verifier = Verifier(store=store, namespace="default")
    await verifier.list_bucket()
    await verifier.read_bucket(lambda _: None)
    return [each.message for each in verifier.report.findings if each.damage]


async def told_otherwise(store: Bucket, number: int, **changes) -> None:
    """Write a segment again with another footer."""
    key = store.keys[number]
    content = bytes((await store.get(key.key)).data)
    footer: Footer = await read_footer(store, key)
    told = {"aborted": footer.aborted, "open_transactions": footer.open_transactions} | changes
    version = 3 if any(told.values()) else 2
    footer = attrs.evolve(footer, **told, version=version)
    encoded = encode_footer(footer)
    await store.put(key.key, [encode_header(footer), content[HEADER.size : footer.end_position], encoded])
    await store.put(key.of_kind("index").key, [encoded])


async def test_a_sound_log_is_found_whole(autojump_clock):
    assert await findings(await two_segments()) == []


@pytest.mark.parametrize("entry", [AbortedTransaction(9, 0, 1, 2), AbortedTransaction(1, 0, 2, 3)])
async def test_an_aborted_transaction_without_its_marker_is_damage(autojump_clock, entry):
    store = await two_segments()
    await told_otherwise(store, 0, aborted=(ABORTED, entry) if entry.marker_offset == 2 else (entry,))
    assert any("where no marker of it is" in message for message in await findings(store))


@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        (
            0,
            {"aborted": ()},
            "producer 1 from offset 0 on was aborted by the marker at offset 1, and the footer",
        ),
        (0, {"aborted": (attrs.evolve(ABORTED, first_offset=1),)}, "was aborted, and begins at offset 1 by the footer"),
        (0, {"open_transactions": ()}, "producer 2 at offset 2 has no marker, and the footer does not tell"),
        (
            0,
            {"open_transactions": (attrs.evolve(OPEN, first_offset=3),)},
            "by the footer it begins at 3 and has",
        ),
        (0, {"open_transactions": (attrs.evolve(OPEN, epoch=1),)}, "by the footer it begins at 2 and has epoch 1"),
        (0, {"open_transactions": (OPEN, OpenTransaction(1, 0, 0))}, "producer 1 from 0 on, and a marker has ended it"),
        (0, {"open_transactions": (OPEN, OpenTransaction(9, 0, 1))}, "producer 9 from 1 on, and has no batch of it"),
        (1, {"aborted": (AbortedTransaction(2, 2, 3, 4),)}, "at offset 3, where a marker has committed it"),
        (
            1,
            {"aborted": (AbortedTransaction(2, 1, 3, 4),)},
            "an aborted transaction of producer 2 from offset 1 on",
        ),
        (
            1,
            {"open_transactions": (OpenTransaction(5, 0, 2, 1),)},
            "an open transaction of producer 5 from offset 2",
        ),
    ],
)
async def test_a_footer_that_contradicts_its_batches_is_damage(autojump_clock, number, changes, message):
    store = await two_segments()
    await told_otherwise(store, number, **changes)
    found = await findings(store)
    assert any(message in each for each in found), found


@pytest.mark.parametrize("is_committed", [True, False])
async def test_verify_reports_footers_that_omit_open_or_aborted_transactions(autojump_clock, is_committed):
    store = Bucket()
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log:
        partition = log.partition()
        await send(partition, b"b", producer_id=2)
        await log.log.flusher.flush_all()
        await log.append(partition, b"plain")
        await log.log.flusher.flush_all()
        await (commit if is_committed else abort)(partition, producer_id=2)
        await log.log.flusher.flush_all()
        store.keys = [each.key for each in partition.manifest.segments]
    assert await findings(store) == []
    if not is_committed:
        await told_otherwise(store, 2, aborted=())
        (message,) = await findings(store)
        assert message.endswith("was aborted by a marker here, and the footer does not tell")
        return
    await told_otherwise(store, 1, open_transactions=())
    first, *_ = await findings(store)
    assert "producer 2 from offset 0 on, open at the end before, has no marker here" in first


async def test_a_batch_behind_the_marker_of_its_producer_is_of_another_transaction(autojump_clock):
    store = Bucket()
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log:
        partition = log.partition()
        for number in range(3):
            await send(partition, b"x", sequence=2 * number)
            await send(partition, b"x", sequence=2 * number + 1)
            await (abort if number else commit)(partition)
        await log.log.flusher.flush_all()
        store.keys = [each.key for each in partition.manifest.segments]
    assert await findings(store) == []
    footer = await read_footer(store, store.keys[0])
    assert [each.first_offset for each in footer.aborted] == [3, 6]
    await told_otherwise(store, 0, aborted=footer.aborted[:1])
    (message,) = await findings(store)
    assert "producer 7 from offset 6 on was aborted by the marker at offset 8" in message


async def test_a_marker_that_can_not_be_read_is_damage(autojump_clock):
    batch = memoryview(bytearray(build_batch([Record(key=b"", value=b"")], attributes=CONTROL | TRANSACTIONAL)))
    check = TransactionCheck()
    check.take(parse_header(batch), batch)
    store = await two_segments()
    footer = attrs.evolve(await read_footer(store, store.keys[0]), aborted=(), open_transactions=())
    (message,) = check.finish(footer)
    assert message.startswith("the marker at offset 0 can't be read")


async def test_a_stable_end_that_goes_back_is_damage(autojump_clock):
    store = await two_segments()
    await told_otherwise(store, 1, open_transactions=(OpenTransaction(5, 0, 1),))
    assert "is stable up to offset 1, and a segment before it up to 2" in await findings(store)
