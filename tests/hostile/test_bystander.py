"""Tests of the well-behaved client beside an attack: it notices failures."""

from __future__ import annotations

import mmap
import os
import signal
from pathlib import Path

import trio

from kafscale.wire.messages.cluster import ApiVersionsRequest
from tests.devtools.processes import timed_loop
from tests.devtools.processes.process import BrokerProcess, broker_process, peak_rss_mib, reset_peak_rss, rss_mib
from tests.hostile.hostile import announced_frame, bystander, next_answer, raw_connection, request_bytes

STOPPED_SECONDS = 0.3


async def test_a_broker_that_does_nothing_for_a_while_is_seen_by_the_client_beside() -> None:
    with broker_process(program=timed_loop.PROGRAM) as broker:
        async with bystander(broker) as seen:
            broker.suspend()
            await trio.sleep(STOPPED_SECONDS)
            broker.resume()
        assert seen.worst_seconds >= STOPPED_SECONDS / 2
        assert seen.problems(grown_max_mib=64) == [], "it was stopped, and did not compute"


COMPUTING = f"""
import signal, sys, time, trio
from kafscale import serving
from tests.devtools.processes import timed_loop

serve = serving.serve

async def serve_and_compute(settings):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(compute)
        await serve(settings)

async def compute():
    with trio.open_signal_receiver(signal.SIGUSR1) as signals:
        async for _ in signals:
            end = time.thread_time() + {STOPPED_SECONDS}
            while time.thread_time() < end:
                pass

serving.serve = serve_and_compute
timed_loop.main(sys.argv[1:])
"""


async def test_a_blocked_event_loop_is_reported_and_a_calm_broker_is_not(tmp_path: Path) -> None:
    with BrokerProcess(directory=tmp_path, program=("-c", COMPUTING)) as broker:
        async with bystander(broker) as calm:
            await trio.sleep(STOPPED_SECONDS)
        async with bystander(broker) as seen:
            os.kill(broker.pid, signal.SIGUSR1)
            await trio.sleep(STOPPED_SECONDS)
        assert calm.problems() == []
        assert seen.problems() == [f"the event loop computed for {seen.longest_step_seconds:.3f} s at a stretch"]
        assert seen.longest_step_seconds >= STOPPED_SECONDS


async def test_a_broker_that_dies_is_seen_by_the_client_beside() -> None:
    with broker_process() as broker:
        async with bystander(broker) as seen:
            os.kill(broker.pid, signal.SIGKILL)
            broker.kill()
        assert seen.failures


async def test_raw_connections_send_bytes_unchanged() -> None:
    with broker_process() as broker:
        async with raw_connection(broker.kafka) as stream:
            await stream.send_all(request_bytes(ApiVersionsRequest(), 0, correlation_id=7))
            answer = await next_answer(stream)
            assert answer is not None
            assert answer[:4] == (7).to_bytes(4)
        async with raw_connection(broker.kafka) as stream:
            await stream.send_all(announced_frame(2**31 - 1))
            assert await next_answer(stream) is None


def test_resetting_the_memory_peak_lowers_it_to_current_usage() -> None:
    block = mmap.mmap(-1, 64 << 20)  # what malloc gets back it may keep
    for at in range(0, len(block), mmap.PAGESIZE):
        block[at] = 1
    before = peak_rss_mib(os.getpid())
    block.close()
    reset_peak_rss(os.getpid())
    assert rss_mib(os.getpid()) - 1 <= peak_rss_mib(os.getpid()) <= before - 48
