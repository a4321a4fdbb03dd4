"""Several brokers as processes, which share a bucket: a directory, or one of an S3 server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.devtools.external.s3_processes import S3Process
from tests.devtools.processes.process import BrokerProcess


@contextmanager
def broker_processes(
    count: int,
    *options: str,
    store: S3Process | None = None,
    protocol: str = "PLAINTEXT",
    bucket: Path | None = None,
    package: Path | None = None,
) -> Iterator[Sequence[BrokerProcess]]:
    """Run brokers 1 to `count` for the block, each with its own directory; they are killed at the end.

    The bucket is one of `store`, or the directory `bucket`, or a temporary one; `protocol` is that of their listeners.
    """
    with TemporaryDirectory(prefix="kafscale-") as used, ExitStack() as running:
        directory = Path(used)
        at = ["--store", f"file:{bucket or directory / 'bucket'}"]
        environ = {}
        if store is not None:
            at = ["--store", "s3://events", "--s3-endpoint", store.endpoint, "--s3-create-bucket", "true"]
            environ = {
                "AWS_ACCESS_KEY_ID": store.credentials.access_key_id,
                "AWS_SECRET_ACCESS_KEY": store.credentials.secret_access_key,
            }
        yield [
            running.enter_context(
                BrokerProcess(
                    directory=directory / str(broker_id),
                    options=("--several-brokers", "--broker-id", str(broker_id), *at, *options),
                    environ=environ,
                    protocol=protocol,
                    package=package,
                )
            )
            for broker_id in range(1, count + 1)
        ]


def bootstrap_of(brokers: Sequence[BrokerProcess]) -> str:
    return ",".join(broker.bootstrap for broker in brokers)
