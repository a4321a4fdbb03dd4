"""The stand-in S3 as a process of its own, which can be stalled: connections stay open, and nothing is answered."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection

import attrs
import trio

from tests.devtools.fakes.s3_server import CREDENTIALS, S3Server, open_s3_server

BUCKET = "bucket"
START_SECONDS = 30


@attrs.frozen(kw_only=True)
class S3Process:
    """A server that runs; its objects are in its memory."""

    endpoint: str
    pid: int

    @property
    def broker_options(self) -> list[str]:
        """The options for `kafscale serve`."""
        return ["--store", f"s3://{BUCKET}", "--s3-endpoint", self.endpoint, "--s3-region", "us-east-1"]

    @property
    def broker_environ(self) -> Mapping[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
            "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_access_key,
        }

    def stall(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


@contextmanager
def s3_process() -> Iterator[S3Process]:
    """Run a server for the block."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        if not ours.poll(START_SECONDS):
            raise RuntimeError("the stand-in S3 did not start")
        yield S3Process(endpoint=ours.recv(), pid=process.pid)
    finally:
        process.kill()
        process.join()


def _serve(told: Connection) -> None:
    trio.run(_serve_forever, told)


async def _serve_forever(told: Connection) -> None:
    server = S3Server()
    server.service.buckets[BUCKET] = {}
    async with open_s3_server(server):
        told.send(server.endpoint)
        await trio.sleep_forever()
