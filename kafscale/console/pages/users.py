"""Users with SCRAM passwords: add, change the password, delete. The broker gets salted passwords only."""

from __future__ import annotations

import attrs
import trio
from starlette.responses import Response
from starlette.routing import Route

from kafscale.client.access import SaltedPassword, list_users, remove_user, set_password
from kafscale.client.brokers import cluster_operations
from kafscale.config import SaslMechanism
from kafscale.console.pages.base import PageRequest, action, view
from kafscale.console.paging import paged
from kafscale.console.rights import CLUSTER, missing_right, unless_refused
from kafscale.errors import ConfigError, NotFound
from kafscale.security.acls import AclOperation
from kafscale.security.verifiers import check_password, check_user_name

SCRAMS = (SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512)
ITERATIONS = 8192


@attrs.frozen
class UserRow:
    """A user and the mechanisms with a password."""

    name: str
    mechanisms: str


async def user_list(page: PageRequest) -> Response:
    client = await page.client()
    operations = await cluster_operations(client)
    users, unseen = await unless_refused(list_users(client), {})
    if unseen:
        unseen = missing_right(operations, AclOperation.DESCRIBE, CLUSTER) or unseen
    text = page.argument("q")
    rows = [
        UserRow(user, ", ".join(f"{mechanism} ({iterations})" for mechanism, iterations in sorted(mechanisms.items())))
        for user, mechanisms in sorted(users.items())
        if text.lower() in user.lower()
    ]
    return page.render(
        "users.html",
        pages=paged(rows, page.argument("page"), "/users", parameters={"q": text}),
        text=text,
        unseen=unseen,
        missing=missing_right(operations, AclOperation.ALTER, CLUSTER),
    )


async def save(page: PageRequest) -> Response:
    """Add a user, or change the password."""
    user, password = str(page.form.get("user", "")), str(page.form.get("password", ""))
    try:
        check_user_name(user)
        check_password(password)
    except ValueError as exc:
        raise ConfigError(f"user '{user}': {exc}") from exc
    if password != page.form.get("again"):
        raise ConfigError("the two passwords differ; enter the same one twice")
    salted = [await trio.to_thread.run_sync(SaltedPassword.of, mechanism, password, ITERATIONS) for mechanism in SCRAMS]
    await set_password(await page.client(), user, salted)
    return page.redirect("/users", f"User {user} can log in with the new password.")


async def delete(page: PageRequest) -> Response:
    client, user = await page.client(), page.argument("user")
    mechanisms = (await list_users(client)).get(user)
    if not mechanisms:
        raise NotFound(f"there is no user '{user}'")
    await remove_user(client, user, list(mechanisms))
    return page.redirect("/users", f"User {user} is deleted; open connections stay until their sessions end.")


ROUTES = [
    Route("/users", view(user_list)),
    Route("/users", action(save), methods=["POST"]),
    Route("/users/delete", action(delete), methods=["POST"]),
]
