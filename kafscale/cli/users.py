"""`kafscale users add|list|remove`: over a connection, or of a broker that is stopped.

Passwords come from a file, the environment or the terminal, but not from arguments, which a list of processes shows.
They are salted here, and not sent to the broker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from kafscale.cli.options import (
    WRITING_OPTIONS,
    Bootstrap,
    ListOption,
    bootstrap_option,
    json_option,
    number,
    run_with_client,
    settings_flags,
    value_or_file,
)
from kafscale.cli.output import say, show
from kafscale.config import USER_PASSWORD_VARIABLE, SaslMechanism, Settings, StoreUrl, load
from kafscale.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from kafscale.cluster.registries.scram_users import ScramUsers

SCRAMS = (SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512)
OFFLINE_OPTIONS = (*WRITING_OPTIONS, "secret_key_file")
STDIN = "-"
BUCKET_NAME = "bucket"  # in --data-dir, where no store is given


@click.group("users")
def command() -> None:
    """Add, list and remove users.

    They log in by SCRAM or PLAIN.

    With --bootstrap this goes through a running broker; with --data-dir or --store it changes the metadata of a stopped
    broker, as for the first user. Other brokers that share its bucket may run, and know the user at once.
    """


_mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice([mechanism.value for mechanism in SCRAMS]),
    cls=ListOption,
    help="Only for this mechanism; repeatable.  [default: both]",
)


def _where(function: Callable[..., Any]) -> Callable[..., Any]:
    return bootstrap_option(settings_flags(only=OFFLINE_OPTIONS)(function))


@command.command("add")
@click.argument("user")
@click.option("--password-file", metavar="FILE", help=f"File with the password, or {STDIN} for stdin.")
@_mechanism_option
@click.option("--iterations", type=number(4096, 16_384), default=8192, show_default=True)
@_where
def add_command(
    user: str, password_file: str | None, mechanisms: tuple[str, ...], iterations: int, **where: Any
) -> None:
    """Add USER, or change the password.

    The password comes from --password-file, or the environment (KAFSCALE_USER_PASSWORD), or a prompt.
    """
    from kafscale.client.access import SaltedPassword, set_password

    password = _password(user, password_file)
    salted = [SaltedPassword.of(mechanism, password, iterations) for mechanism in _chosen(mechanisms)]

    async def offline(users: ScramUsers) -> None:
        from kafscale.cluster.registries.scram_users import CredentialKey
        from kafscale.security.verifiers import verifier_of_salted

        await users.alter(
            {
                CredentialKey(one.mechanism, user): verifier_of_salted(
                    one.mechanism, one.salted_password, one.salt, one.iterations
                )
                for one in salted
            }
        )

    _run(where, lambda client: set_password(client, user, salted), offline)
    names = [*(str(one.mechanism) for one in salted), "PLAIN"]
    say(f"{user} can log in by {' and '.join(names)}, where these are enabled")


@command.command("list")
@json_option
@_where
def list_command(as_json: bool, **where: Any) -> None:
    """List all users and their mechanisms."""
    found: dict[str, dict[SaslMechanism, int]] = {}

    async def over_connection(client: Any) -> None:
        from kafscale.client.access import list_users

        found.update(await list_users(client))

    async def offline(users: ScramUsers) -> None:
        found.update(users.iterations())

    _run(where, over_connection, offline)
    rows = [
        (user, mechanism.value, iterations)
        for user, infos in sorted(found.items())
        for mechanism, iterations in sorted(infos.items())
    ]
    show(("user", "mechanism", "iterations"), rows, as_json=as_json)


@command.command("remove")
@click.argument("user")
@_mechanism_option
@_where
def remove_command(user: str, mechanisms: tuple[str, ...], **where: Any) -> None:
    """Remove USER.

    The user's connections stay open until their sessions end (--connections-max-reauth).
    """

    def known(infos: Mapping[SaslMechanism, int]) -> list[SaslMechanism]:
        wanted = [mechanism for mechanism in _chosen(mechanisms) if mechanism in infos]
        if not wanted:
            raise NotFound(f"there is no user '{user}'; see `kafscale users list`")
        return wanted

    async def over_connection(client: Any) -> None:
        from kafscale.client.access import list_users, remove_user

        await remove_user(client, user, known((await list_users(client)).get(user, {})))

    async def offline(users: ScramUsers) -> None:
        from kafscale.cluster.registries.scram_users import CredentialKey

        await users.alter(
            {CredentialKey(mechanism, user): None for mechanism in known(users.iterations().get(user, {}))}
        )

    _run(where, over_connection, offline)


def _chosen(mechanisms: tuple[str, ...]) -> list[SaslMechanism]:
    return [mechanism for mechanism in SCRAMS if not mechanisms or mechanism.value in mechanisms]


def _password(user: str, password_file: str | None) -> str:
    from kafscale.security.verifiers import check_password, check_user_name

    try:
        check_user_name(user)
    except ValueError as exc:
        raise ConfigError(f"USER: '{user}' is not a valid name: {exc}") from exc
    try:
        if password_file == STDIN:
            password = sys.stdin.readline().rstrip("\r\n")
        elif password_file is not None:
            password = value_or_file(f"@{password_file}")
        else:
            password = os.environ.get(USER_PASSWORD_VARIABLE) or _prompted(user)
        check_password(password)
    except ValueError as exc:
        raise ConfigError(f"--password-file: {exc}") from exc
    return password


def _prompted(user: str) -> str:
    if not sys.stdin.isatty():
        raise ConfigError(
            f"--password-file: a password is needed; give a file, {STDIN} for stdin, or {USER_PASSWORD_VARIABLE}"
        )
    password: str = click.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True)
    return password


def _run(
    where: dict[str, Any],
    over_connection: Callable[[Any], Awaitable[None]],
    offline: Callable[[ScramUsers], Awaitable[None]],
) -> None:
    """Use a running broker; or a stopped one, if --data-dir, --store or --config is given."""
    import trio

    bootstrap: Bootstrap = where.pop("bootstrap")
    config_file: str | None = where.pop("config_file")
    if config_file is None and where.get("data_dir") is None and where.get("store") is None:
        run_with_client(bootstrap, over_connection)
        return
    trio.run(_offline, load(where, os.environ, config_file).settings, offline)


async def _offline(settings: Settings, use: Callable[[ScramUsers], Awaitable[None]]) -> None:
    from kafscale.cli.offline import led_metadata
    from kafscale.cluster.registries.scram_users import ScramUsers
    from kafscale.log.wal.data_directory import keep_files_private, lock_data_directory
    from kafscale.store.opening.opening import store_of_command

    keep_files_private()
    if settings.store.scheme == "memory":
        raise ConfigError(f"--store: '{settings.store}' keeps no users; allowed: file:PATH or s3://BUCKET")
    with lock_data_directory(settings.data_dir):
        if settings.store == StoreUrl(scheme="file", path=settings.data_dir / BUCKET_NAME):
            settings.store.path.mkdir(exist_ok=True)  # as a first start does
        async with store_of_command(settings) as store, led_metadata(settings, store, may_be_shared=True) as metadata:
            users = ScramUsers.of(settings, metadata)
            await users.load()
            await use(users)
