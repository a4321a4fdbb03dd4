"""`kafscale completion bash|zsh|fish` prints a shell's script; names of topics and groups come from a running broker.

The script runs `kafscale` at each Tab. A broker has a second to answer; without an answer there are no names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

if TYPE_CHECKING:
    from kafscale.cli.options import Bootstrap
    from kafscale.client import Client

VARIABLE = "_KAFSCALE_COMPLETE"  # click's: the script sets it, and click then answers in place of the command
ANSWER_SECONDS = 1.0
NAMES_MAX_COUNT = 1_000  # more than a terminal shows


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For bash, `eval "$(kafscale completion bash)"` in ~/.bashrc loads it.
    """
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(ctx.find_root().command, {}, "kafscale", VARIABLE).source())


ListNames = Callable[["Client"], Awaitable[Iterable[str]]]


class BrokersName(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic in newer versions only
    """Type of an argument that names something that brokers have; any text is taken."""

    name = "text"

    def __init__(self, list_names: ListNames) -> None:
        self._list_names = list_names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        bootstrap = ctx.params.get("bootstrap")
        if bootstrap is None:  # of commands that ask the bucket, or the admin server
            return []
        try:
            names = _ask(ctx, bootstrap, self._list_names)
        except Exception:  # a message would end up in the command line that is being typed
            return []
        given = ctx.params.get(param.name or "") or ()
        if not incomplete:
            names = [name for name in names if not name.startswith("__")]  # internal topics
        found = [name for name in names if name.startswith(incomplete) and name.isprintable() and name not in given]
        return [CompletionItem(name) for name in found[:NAMES_MAX_COUNT]]


def _ask(ctx: click.Context, bootstrap: Bootstrap, list_names: ListNames) -> list[str]:
    from kafscale.cli.options import run_with_client

    names: list[str] = []

    async def use(client: Client) -> None:
        names.extend(await list_names(client))

    with ctx.scope(cleanup=False):
        run_with_client(bootstrap, use, limit_seconds=ANSWER_SECONDS)
    return names


async def _topics(client: Client) -> Iterable[str]:
    from kafscale.client.admin import list_topics

    return [topic.name or "" for topic in await list_topics(client)]


async def _groups(client: Client) -> Iterable[str]:
    from kafscale.client.groups import list_groups

    return [group.group_id for group in await list_groups(client)]


TOPIC = BrokersName(_topics)
GROUP = BrokersName(_groups)
