"""`kafscale flush`: take what a running broker has not yet in the bucket there, now."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlencode

import click

from kafscale.cli.connecting import ADDRESS, Parsed, json_option
from kafscale.cli.output import show_json
from kafscale.cli.progress import measuring
from kafscale.config import Address, parse_duration

DEFAULT_ADMIN = "127.0.0.1:9644"
ADMIN_VARIABLE = "KAFSCALE_ADMIN_LISTEN"
SILENCE_MAX_SECONDS = 15.0  # the broker says each second how far it has come


def _seconds(text: str) -> float:
    return parse_duration(text) / 1_000_000


@click.command("flush")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--admin",
    type=ADDRESS,
    envvar=ADMIN_VARIABLE,
    default=DEFAULT_ADMIN,
    help=f"The broker's --admin-listen.  [default: {DEFAULT_ADMIN}; {ADMIN_VARIABLE}]",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=Parsed("DURATION", _seconds),
    default="5m",
    help="Give up after this long.  [default: 5m]",
)
@json_option
def command(topics: tuple[str, ...], admin: Address, timeout_seconds: float, as_json: bool) -> None:
    """Take all records of TOPIC, or of all topics, that are acknowledged and not in the bucket yet there, and wait.

    For a reader of the bucket that should see them now, or before a machine is taken away. The broker goes on serving.
    It exits with 0 when all is in the bucket, and with 1 if that can't be known.
    """
    with _asked(admin, topics) as response:
        result = _follow(response, timeout_seconds)
    if as_json:
        show_json({name: result[name] for name in ("segments", "bytes", "seconds")})
    else:
        click.echo(f"flushed {result['segments']} segments, {result['bytes']} bytes, in {result['seconds']} s")


@contextmanager
def _asked(admin: Address, topics: tuple[str, ...]) -> Iterator[HTTPResponse]:
    """The broker's answer, once it has begun to flush."""
    connection = HTTPConnection(admin.host, admin.port, timeout=SILENCE_MAX_SECONDS)
    try:
        try:
            connection.connect()
        except OSError as exc:
            raise click.ClickException(
                f"no broker's admin server at {admin}: {exc.strerror or exc}; start the broker, or give --admin "
                "HOST:PORT, which is its --admin-listen"
            ) from exc
        query = urlencode([("topic", topic) for topic in topics])
        connection.request("POST", f"/flush?{query}" if query else "/flush")
        response = connection.getresponse()
        if response.status != HTTPStatus.OK:
            raise click.ClickException(_refusal(admin, response))
        yield response
    except TimeoutError as exc:
        raise click.ClickException(f"the broker at {admin} has said nothing for {SILENCE_MAX_SECONDS:g} s") from exc
    except (OSError, HTTPException, ValueError) as exc:
        raise click.ClickException(
            f"lost the admin server at {admin} before all was flushed: {exc or type(exc).__name__}; "
            "is that a broker's --admin-listen, and is it still running?"
        ) from exc
    finally:
        connection.close()


def _refusal(admin: Address, response: HTTPResponse) -> str:
    said = response.read(1000).decode(errors="replace").strip()
    if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
        return f"the broker at {admin} is not ready: {said}; try again later"
    if response.status == HTTPStatus.FORBIDDEN:
        return f"{admin} refuses that: {said}"
    if response.status == HTTPStatus.NOT_FOUND and said.startswith("there is no topic"):
        return f"{said}; `kafscale topics list` shows them"
    return f"{admin} answered {response.status} ({said or 'nothing'}): that is not the --admin-listen of this version"


def _follow(response: HTTPResponse, timeout_seconds: float) -> Mapping[str, Any]:
    """Read how far it has come, until it is done. Raises OSError, ValueError."""
    until = time.monotonic() + timeout_seconds
    told = _next_line(response)
    with measuring("flushing", told["wanted_bytes"]) as report:
        while not told["done"]:
            if time.monotonic() > until:
                raise click.ClickException(
                    f"not done in {timeout_seconds:g} s: {told['bytes']} of {told['wanted_bytes']} bytes are in the "
                    "bucket; the broker goes on, and its log says so if the store fails; --timeout waits for longer"
                )
            report(told["bytes"])
            told = _next_line(response)
    return told


def _next_line(response: HTTPResponse) -> Mapping[str, Any]:
    line = response.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("its answer ended")
    progress: Mapping[str, Any] = json.loads(line)
    return progress
