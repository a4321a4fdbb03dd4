"""What verify finds wrong with what segments tell of transactions."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from kafscale.formats.footer_reading import read_footer
from kafscale.formats.segment import HEADER, Footer, encode_footer, encode_header
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction
from kafscale.log.check.verification import Verifier
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.testing.disk import MemoryDisk
from tests.devtools.memory_log import memory_log
from tests.devtools.transactions import abort, commit, send

SETTINGS = {"flush_interval_seconds": 1e9}


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


async def test_what_is_right_is_found_whole(autojump_clock):
    assert await findings(await two_segments()) == []


@pytest.mark.parametrize("entry", [AbortedTransaction(9, 0, 1, 2), AbortedTransaction(1, 0, 2, 3)])
async def test_an_aborted_transaction_without_its_marker_is_damage(autojump_clock, entry):
    store = await two_segments()
    await told_otherwise(store, 0, aborted=(entry,))
    (message,) = await findings(store)
    assert "where no marker of it is" in message


async def test_a_transaction_without_a_marker_that_is_not_told_as_open_is_damage(autojump_clock):
    store = await two_segments()
    await told_otherwise(store, 0, open_transactions=())
    (message,) = await findings(store)
    assert "producer 2 at offset 2 has no marker" in message


async def test_a_stable_end_that_goes_back_is_damage(autojump_clock):
    store = await two_segments()
    await told_otherwise(store, 1, open_transactions=(OpenTransaction(5, 0, 1),))
    (message,) = await findings(store)
    assert message == "is stable up to offset 1, and a segment before it up to 2"
