"""`kafscale flush`: flush a running broker's records to the bucket now, through its admin server."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlencode

import click
from click.core import ParameterSource

from kafscale.cli.options import ADMIN, BOOTSTRAP, SECONDS, Bootstrap, json_option, value_or_file
from kafscale.cli.output import measuring, show_json
from kafscale.config import ADMIN_CA_VARIABLE, BOOTSTRAP_VARIABLE, Address
from kafscale.errors import ConfigError
from kafscale.network_errors import why_unreachable

DEFAULT_PORT = 9644
DEFAULT_ADMIN = f"127.0.0.1:{DEFAULT_PORT}"
ADMIN_VARIABLE = "KAFSCALE_ADMIN_LISTEN"
SILENCE_MAX_SECONDS = 15.0  # the broker reports its progress each second


def _connection(admin: Address, *, uses_tls: bool, ca_file: str | None) -> HTTPConnection:
    if uses_tls and admin.wants_tls is False:
        raise ConfigError(
            f"--admin: '{admin.scheme}://{admin}' is without TLS, which --admin-ssl or --admin-ca-file asks for; "
            "allowed: HOST:PORT or https://HOST:PORT"
        )
    if not (uses_tls or admin.wants_tls):
        return HTTPConnection(admin.host, admin.port, timeout=SILENCE_MAX_SECONDS)
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as exc:
        raise ConfigError(
            f"--admin-ca-file: '{ca_file}' can't be read ({exc.strerror or exc}); allowed: a PEM file"
        ) from exc
    return HTTPSConnection(admin.host, admin.port, timeout=SILENCE_MAX_SECONDS, context=context)


def _headers(token_file: str | None) -> dict[str, str]:
    if token_file is None:
        return {}
    try:
        return {"Authorization": f"Bearer {value_or_file(f'@{token_file}')}"}
    except ValueError as exc:
        raise ConfigError(f"--admin-token-file: {exc}") from exc


@click.command("flush")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--admin",
    type=ADMIN,
    envvar=ADMIN_VARIABLE,
    help=f"The broker's --admin-listen; https://HOST:PORT means TLS.  [default: port {DEFAULT_PORT} of each host in "
    f"--bootstrap, or {DEFAULT_ADMIN}; {ADMIN_VARIABLE}]",
)
@click.option(
    "--bootstrap",
    type=BOOTSTRAP,
    envvar=BOOTSTRAP_VARIABLE,
    help=f"Brokers whose admin servers are at port {DEFAULT_PORT} of the same hosts; for others give --admin.  "
    f"[{BOOTSTRAP_VARIABLE}]",
)
@click.option("--admin-ssl", is_flag=True, envvar="KAFSCALE_ADMIN_SSL", help="Connect with TLS.  [KAFSCALE_ADMIN_SSL]")
@click.option(
    "--admin-ca-file",
    type=click.Path(),
    envvar=ADMIN_CA_VARIABLE,
    help=f"PEM file of the authorities to trust; implies TLS.  [default: the system's; {ADMIN_CA_VARIABLE}]",
)
@click.option(
    "--admin-token-file",
    type=click.Path(),
    envvar="KAFSCALE_ADMIN_TOKEN_FILE",
    help="File with the token of the admin server, if it has one.  [KAFSCALE_ADMIN_TOKEN_FILE]",
)
@click.option("--timeout", "timeout_seconds", type=SECONDS, default="5m", help="Longest time to wait.  [default: 5m]")
@json_option
def command(
    topics: tuple[str, ...],
    admin: Address | None,
    bootstrap: Bootstrap | None,
    *,
    admin_ssl: bool,
    admin_ca_file: str | None,
    admin_token_file: str | None,
    timeout_seconds: float,
    as_json: bool,
) -> None:
    """Flush acknowledged records to the bucket.

    It takes those of TOPIC, or of all topics, and waits until they are there. Use it before a read of the bucket that
    must see them, or before a machine is removed. The broker serves meanwhile. The exit code is 1 if it is unknown
    whether all records are in the bucket.
    """
    result = {"segments": 0, "bytes": 0, "seconds": 0.0}
    for address in _admins(admin, bootstrap):
        connection = _connection(address, uses_tls=admin_ssl or admin_ca_file is not None, ca_file=admin_ca_file)
        with _asked(connection, address, topics, _headers(admin_token_file)) as response:
            done = _follow(response, timeout_seconds)
        result = {name: round(total + done[name], 3) for name, total in result.items()}
    if as_json:
        show_json(result)
    else:
        click.echo(f"flushed {result['segments']} segments, {result['bytes']} bytes, in {result['seconds']} s")


def _admins(admin: Address | None, bootstrap: Bootstrap | None) -> list[Address]:
    """Return the admin servers to ask: flags go before variables, and --admin before --bootstrap."""
    source = click.get_current_context().get_parameter_source
    is_named = bootstrap is not None and source("bootstrap") is ParameterSource.COMMANDLINE
    if admin is not None and not (is_named and source("admin") is ParameterSource.ENVIRONMENT):
        return [admin]
    if bootstrap is None:
        return [Address.parse(DEFAULT_ADMIN)]
    return [Address(host, DEFAULT_PORT) for host in dict.fromkeys(address.host for address in bootstrap)]


@contextmanager
def _asked(
    connection: HTTPConnection, admin: Address, topics: tuple[str, ...], headers: dict[str, str]
) -> Iterator[HTTPResponse]:
    try:
        try:
            connection.connect()
        except ssl.SSLError as exc:
            raise click.ClickException(
                f"the TLS handshake with {admin} failed: {why_unreachable(exc)}; give --admin-ca-file with the "
                "authority of its certificate, or leave out https:// and --admin-ssl if it has no TLS"
            ) from exc
        except OSError as exc:
            raise click.ClickException(
                f"no broker's admin server at {admin}: {why_unreachable(exc)}; start the broker, or give its "
                "--admin-listen as --admin HOST:PORT"
            ) from exc
        query = urlencode([("topic", topic) for topic in topics])
        connection.request("POST", f"/flush?{query}" if query else "/flush", headers=headers)
        response = connection.getresponse()
        if response.status != HTTPStatus.OK:
            raise click.ClickException(_refusal(admin, response))
        yield response
    except TimeoutError as exc:
        raise click.ClickException(f"no answer from the broker at {admin} for {SILENCE_MAX_SECONDS:g} s") from exc
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as exc:  # JSON of another server, too
        raise click.ClickException(
            f"lost the admin server at {admin} before the flush was done: {exc or type(exc).__name__}; check that this "
            "is a running broker's --admin-listen, and whether it needs --admin-ssl"
        ) from exc
    finally:
        connection.close()


def _refusal(admin: Address, response: HTTPResponse) -> str:
    said = response.read(1000).decode(errors="replace").strip()
    if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
        return f"the broker at {admin} is not ready: {said}; try again later"
    if response.status == HTTPStatus.UNAUTHORIZED:
        return f"{admin} needs a token: give --admin-token-file"
    if response.status == HTTPStatus.FORBIDDEN:
        return f"{admin} refuses the request: {said}"
    if response.status == HTTPStatus.NOT_FOUND and said.startswith("there is no topic"):
        return f"{said}; see `kafscale topics list`"
    return f"{admin} answered {response.status} ({said or 'nothing'}): it is not a broker's --admin-listen"


def _follow(response: HTTPResponse, timeout_seconds: float) -> Mapping[str, Any]:
    """Read progress lines until the flush is done, and return the last one."""
    until = time.monotonic() + timeout_seconds
    progress = _next_line(response)
    with measuring("flushing", progress["wanted_bytes"]) as report:
        while not progress["done"]:
            if time.monotonic() > until:
                raise click.ClickException(
                    f"not done in {timeout_seconds:g} s: {progress['bytes']} of {progress['wanted_bytes']} bytes are "
                    "in the bucket. The broker goes on; see its log for errors of the store, or give a longer --timeout"
                )
            report(progress["bytes"])
            progress = _next_line(response)
    return progress


def _next_line(response: HTTPResponse) -> Mapping[str, Any]:
    line = response.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("its answer ended")
    progress: Mapping[str, Any] = json.loads(line)
    return progress
