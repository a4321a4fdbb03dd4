"""`kafscale sql serve`: the topics behind Spark's own Thrift server, until a signal."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import click

from kafscale.cli.connecting import ADDRESS, Parsed, take
from kafscale.cli.sql_options import (
    SparkOptions,
    option,
    read_settings,
    scan_limit,
    source_options,
    spark_options,
    spark_session,
)
from kafscale.config import Address, parse_duration
from kafscale.errors import KafScaleError

if TYPE_CHECKING:
    from kafscale.spark.sql.server import ServedTopics

LISTEN_DEFAULT = "127.0.0.1:10000"  # Hive's port
REFRESH_DEFAULT = "30s"


def _seconds(text: str) -> float:
    return parse_duration(text) / 1_000_000


@click.command("serve")
@option(
    "--listen",
    type=ADDRESS,
    default=LISTEN_DEFAULT,
    shown=LISTEN_DEFAULT,
    help="Address for clients of JDBC and ODBC. Nobody is asked for a password.",
)
@option(
    "--refresh-interval",
    "refresh_seconds",
    type=Parsed("TIME", _seconds),
    default=REFRESH_DEFAULT,
    shown=REFRESH_DEFAULT,
    help="How often to look for topics that came or went; records are seen at once.",
)
@spark_options
def serve_command(listen: Address, refresh_seconds: float, config_file: str | None, **options: Any) -> None:
    """Answer SQL over topics to programs that speak JDBC or ODBC, by Spark's own Thrift server.

    It is no sandbox: who can connect can read and write what this process can, and run code in it.
    """
    from kafscale.spark.sql.server import ServedTopics, settings, warehouse
    from kafscale.spark.sql.topics import Topics

    spark = take(options, SparkOptions)
    source = source_options(read_settings(options, config_file), spark)
    with (
        warehouse() as path,
        spark_session(spark, app_name="kafscale sql serve", **settings(listen, str(path))) as session,
    ):
        topics = Topics(spark=session, options=source, max_scan_bytes=scan_limit(spark))
        served = ServedTopics(topics=topics, warehouse=path)
        served.start()
        click.echo(f"kafscale sql is ready: jdbc:hive2://{listen}")
        _refresh_until_stopped(served, refresh_seconds)


def _refresh_until_stopped(served: ServedTopics, interval_seconds: float) -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    while not stopped.wait(interval_seconds):
        try:
            served.refresh()
        except KafScaleError as exc:
            click.echo(f"kafscale: the topics could not be looked up, so their list stays as it was: {exc}", err=True)
