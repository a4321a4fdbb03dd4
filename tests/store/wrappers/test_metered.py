from contextlib import aclosing

import pytest
import trio
import trio.testing

from kafscale.errors import NotFound, PreconditionFailed, SlowDown
from kafscale.metrics import Metrics
from kafscale.store.memory import MemoryStore
from kafscale.store.wrappers.metered import MeteredStore, StoreMetrics
from kafscale.testing.faulty_store import FaultyStore, On


@pytest.fixture
def metrics():
    return StoreMetrics.register(Metrics())


@pytest.fixture
def faulty():
    return FaultyStore(MemoryStore())


async def test_operations_are_counted_by_kind_and_outcome(metrics, faulty):
    store = MeteredStore(faulty, metrics)
    await store.put_if_absent("key", [b"12", b"345"])
    with pytest.raises(PreconditionFailed):
        await store.put_if_absent("key", [b"not counted"])
    with pytest.raises(NotFound):
        await store.get("missing")
    await store.get("key")
    await store.get_range("key", 1, 2)
    faulty.fail(On("head"), SlowDown)
    with pytest.raises(SlowDown):
        await store.head("key")
    async with aclosing(store.list("")) as pages:
        assert len([page async for page in pages]) == 1

    assert {labels: counter.value for labels, counter in metrics.operations.children.items()} == {
        ("put_if_absent", "ok"): 1,
        ("put_if_absent", "precondition_failed"): 1,
        ("get", "not_found"): 1,
        ("get", "ok"): 1,
        ("get_range", "ok"): 1,
        ("head", "slow_down"): 1,
        ("list", "ok"): 2,  # the page, and the look for another one
    }
    assert metrics.bytes.of("written").value == 5
    assert metrics.bytes.of("read").value == 7


async def test_latency_is_the_time_at_the_store(metrics, faulty, autojump_clock):
    store = MeteredStore(faulty, metrics)
    faulty.delay(On("put"), 3.0)
    await store.put("key", [b""])
    histogram = metrics.seconds.of("put", "ok")
    assert histogram.total == pytest.approx(3.0)
    assert sum(histogram.counts) == 1


async def test_a_cancelled_operation_and_a_bug_are_outcomes_too(metrics, faulty):
    store = MeteredStore(faulty, metrics)
    faulty.hold(On("get"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.get, "key")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert metrics.operations.of("get", "cancelled").value == 1
    with pytest.raises(ValueError, match="key"):
        await store.put("..", [b""])
    assert metrics.operations.of("put", "failed").value == 1


async def test_the_scrape_has_a_line_for_each(metrics, faulty):
    await MeteredStore(faulty, metrics).put("key", [b"1"])
    text = metrics.registry.expose()
    assert 'kafscale_store_operations_total{operation="put",outcome="ok"} 1' in text
    assert 'kafscale_store_operation_seconds_count{operation="put",outcome="ok"} 1' in text
    assert 'kafscale_store_bytes_total{direction="written"} 1' in text
