"""Several brokers as processes of their own, which share a bucket that is a directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.devtools.process import BrokerProcess


@contextmanager
def broker_processes(count: int, *options: str) -> Iterator[Sequence[BrokerProcess]]:
    """Run brokers 1 to `count` for the block, each with a directory of its own; they are killed at its end."""
    with TemporaryDirectory(prefix="kafscale-") as used, ExitStack() as running:
        directory = Path(used)
        yield [
            running.enter_context(
                BrokerProcess(
                    directory=directory / str(broker_id),
                    options=(
                        *(
                            "--several-brokers",
                            "--broker-id",
                            str(broker_id),
                            "--store",
                            f"file:{directory / 'bucket'}",
                        ),
                        *options,
                    ),
                )
            )
            for broker_id in range(1, count + 1)
        ]


def bootstrap_of(brokers: Sequence[BrokerProcess]) -> str:
    """Return what a client connects to, so that it finds any of them."""
    return ",".join(each.bootstrap for each in brokers)
