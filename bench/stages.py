"""The stages that functions of a broker belong to: sampled stacks summed up by stage of a request.

A stack belongs to the stage of its innermost function that has one; what none of them has is trio's own or Python's.
Stacks that end where a thread waits for work are left out: py-spy can't always tell that they do not run.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

EVENT_LOOP, THREAD = "event loop", "thread"
OTHER = "trio, and the rest of the event loop"
OTHER_THREADS = "other threads: trio's hand-over, the rest"

# Beginnings of `function (file)`, as py-spy writes frames; the first that fits counts.
STAGES: Mapping[str, tuple[str, ...]] = {
    "receive, cut frames": ("SocketTransport.receive", "FrameReader."),
    "parse and decode": ("PlainProduce", "parse_request_header", "decode", "Dispatcher._decode"),
    "validate, check against the topic": (
        "validate",
        "RecordCheck",
        "_note_",
        "_validated",
        "Batch.",
        "begin_batch",
        "compute_crc",
    ),
    "place in the chunk pool": ("Partition.place_nowait", "Partition._lease_chunk", "ChunkPool."),
    "sequences, offsets, tail, queue for the log": (
        "ProducerStates.",
        "append_batch",
        "Partition.append",
        "Wal.append",
        "Tail.append",
    ),
    "encode the log's entries": ("encode (kafscale/formats/wal_entries",),
    "write-ahead log: write and sync": (
        "DirectWriter.",
        "RealDisk._write",
        "_write (kafscale/log/wal/disk",
        "write_all",
    ),
    "write-ahead log: high watermarks, per group": (
        "became_durable (kafscale/log/partition/tail",
        "Partition.on_durable",
        "LocalFiles.",
        "Wal.",
        "RealDisk.",
    ),
    "encode the replies": ("encode", "response_frame", "ErrorCounter.", "_Shape."),
    "send": ("SocketTransport.send",),
    "fetch: select from the tail, buffers": ("Tail.select", "coalesce", "Slices.", "Partition.select_tail"),
    "fetch: the rest": ("handle (kafscale/api/records/fetch", "FetchSession"),
    "flush: store": ("FileStore.", "Directory.", "_leave_page_cache", "_sync_directory"),
    "flush: the rest": ("Flusher.", "Uploader.", "build_footer", "body_crc", "crc_of"),
    "reader": ("Connection._re", "Connection._take", "Dispatcher.accept", "ShortWay.", "begin", "PendingProduce."),
    "writer": ("Connection._write", "Connection._send", "Dispatcher.answer", "Dispatcher.sent", "Histogram."),
}
_LINE = re.compile(r":\d+\)$")


def folded(lines: Iterable[str]) -> Counter[tuple[str, ...]]:
    """Stacks as py-spy writes them (`frame;frame;frame count`), without line numbers, from the task or job inwards."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        stack, _, count = line.rstrip("\n").rpartition(" ")
        thread, *frames = [_LINE.sub(")", frame) for frame in stack.split(";")]
        if not frames or frames[-1].startswith(_WAITS):
            continue
        started = max((at for at, frame in enumerate(frames) if frame.startswith(_STARTS)), default=-1)
        stacks[EVENT_LOOP if "MainThread" in thread else THREAD, *frames[started + 1 :]] += int(count)
    return stacks


_WAITS = ("WorkerThread._work", "EpollIOManager.get_events")
_STARTS = (
    "run (trio/_core/_run.py)",
    "unrolled_run",
    "WorkerThread._handle_job",
    "to_thread_run_sync.<locals>.worker_fn",
)


def by_stage(stacks: Mapping[tuple[str, ...], int], *, event_loop_us: float, threads_us: float) -> dict[str, float]:
    """Return what each stage takes of what the event loop, and all other threads together, have taken for a request."""
    totals: Counter[str] = Counter()
    for stack, count in stacks.items():
        totals[stack[0]] += count
    taken: defaultdict[str, float] = defaultdict(float)
    for stack, count in stacks.items():
        us = event_loop_us if stack[0] == EVENT_LOOP else threads_us
        taken[_stage_of(stack)] += us * count / totals[stack[0]]
    return taken


def _stage_of(stack: tuple[str, ...]) -> str:
    for frame in reversed(stack[1:]):
        for stage, beginnings in STAGES.items():
            if frame.startswith(beginnings):
                return stage
    return OTHER if stack[0] == EVENT_LOOP else OTHER_THREADS
