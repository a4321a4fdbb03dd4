"""`kafscale console` serves web pages of a cluster."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafscale.cli.options import ADDRESS, SETTING, STORE_OPTIONS, Bootstrap, ListOption, bootstrap_option, with_settings
from kafscale.cli.options import COMMAND_CONFIG as COMMAND_CONFIG_KEY
from kafscale.config import Address, Loaded, LogFormat, LogLevel
from kafscale.errors import ConfigError, StartupError

if TYPE_CHECKING:
    from kafscale.console.settings import Security

TOKEN_MAX_BYTES = 4096


@click.command("console")
@click.option(
    "--listen",
    type=ADDRESS,
    envvar="KAFSCALE_CONSOLE_LISTEN",
    default="127.0.0.1:8080",
    help="Address of the pages.  [default: 127.0.0.1:8080; KAFSCALE_CONSOLE_LISTEN]",
)
@click.option("--fd", type=int, hidden=True, help="Descriptor of a listening socket, in place of --listen.")
@click.option("--setting", "properties", type=SETTING, multiple=True, hidden=True, help="One of --command-config.")
@bootstrap_option
@click.option(
    "--admin",
    type=ADDRESS,
    envvar="KAFSCALE_CONSOLE_ADMIN",
    help="Admin server of a KafScale broker, for sizes in memory and flushes.  [KAFSCALE_CONSOLE_ADMIN]",
)
@click.option(
    "--admin-token-file",
    "token_file",
    envvar="KAFSCALE_ADMIN_TOKEN_FILE",
    metavar="PATH",
    help="File with the token of the admin server.  [KAFSCALE_ADMIN_TOKEN_FILE]",
)
@click.option(
    "--registry",
    envvar="KAFSCALE_CONSOLE_REGISTRY",
    metavar="URL",
    help="Schema registry, to decode records.  [KAFSCALE_CONSOLE_REGISTRY]",
)
@click.option(
    "--pipeline",
    "pipelines",
    cls=ListOption,
    envvar="KAFSCALE_CONSOLE_PIPELINES",
    metavar="FILE",
    help="Pipeline file whose state is shown; repeatable.  [KAFSCALE_CONSOLE_PIPELINES]",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    cls=ListOption,
    envvar="KAFSCALE_CONSOLE_ALLOWED_HOSTS",
    help="Name by which browsers reach the console, besides localhost and IP addresses; repeatable.  "
    "[KAFSCALE_CONSOLE_ALLOWED_HOSTS]",
)
@click.option(
    "--read-only",
    is_flag=True,
    envvar="KAFSCALE_CONSOLE_READ_ONLY",
    help="Change nothing.  [KAFSCALE_CONSOLE_READ_ONLY]",
)
@with_settings(only=STORE_OPTIONS)
def command(
    loaded: Loaded,
    listen: Address,
    bootstrap: Bootstrap,
    *,
    fd: int | None,
    properties: tuple[tuple[str, str], ...],
    admin: Address | None,
    token_file: str | None,
    registry: str | None,
    pipelines: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    read_only: bool,
) -> None:
    """Serve web pages of a cluster.

    The pages show topics, messages, groups, brokers, users and the bucket of any Kafka cluster.

    Where the cluster has logins, users of the pages log in with their own credentials; --command-config gives the
    protocol, the mechanisms and TLS. The pages of the bucket need --store.
    """
    from kafscale.console_process import LIBRARIES, open_listener

    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        from kafscale.extras import install_command

        raise StartupError(
            f"the console needs {', '.join(missing)}, which the extra `console` has: {install_command('console')}"
        )
    import trio

    from kafscale.cli.serve import configure_logging
    from kafscale.console.settings import ConsoleSettings
    from kafscale.console.web.serving import serve

    configure_logging(LogLevel.INFO, LogFormat.TEXT)
    settings = ConsoleSettings(
        bootstrap=bootstrap,
        security=_security(click.get_current_context().meta.get(COMMAND_CONFIG_KEY), dict(properties)),
        allowed_hosts=frozenset(name.lower() for name in (*allowed_hosts, listen.host)),
        is_read_only=read_only,
        admin=admin,
        admin_token=None if token_file is None else _token(token_file),
        registry=registry,
        pipelines=[Path(file) for file in pipelines],
        bucket=loaded.settings if "store" in loaded.sources or "data_dir" in loaded.sources else None,
    )
    try:
        listener = open_listener(listen) if fd is None else socket.socket(fileno=fd)
    except OSError as exc:
        raise StartupError(f"--listen {listen}: {exc.strerror or exc}; choose another address") from exc
    host, port = listener.getsockname()[:2]

    def say_ready() -> None:
        print(f"kafscale console is ready: http://{Address(host, port)}", flush=True)

    trio.run(serve, settings, listener, say_ready)


def _security(command_config: str | None, properties: dict[str, str]) -> Security:
    """Read the client settings of a file, or those of `kafscale serve`. Raises ConfigError."""
    from kafscale.console.settings import Security
    from kafscale.login.properties import read_properties

    try:
        return Security.read(properties if command_config is None else read_properties(Path(command_config)))
    except ConfigError as exc:
        raise ConfigError(f"--command-config {command_config}: {exc}") from exc


def _token(path: str) -> str:
    try:
        token = Path(path).read_bytes()[:TOKEN_MAX_BYTES].decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--admin-token-file {path}: {exc}") from exc
    if not token:
        raise ConfigError(f"--admin-token-file {path}: the file is empty; write the admin server's token into it")
    return token
