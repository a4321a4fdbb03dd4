"""A browser without scripts on a console whose commands run."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import trio

from kafscale.config import Address, SaslMechanism, SecurityProtocol
from kafscale.console.settings import ConsoleSettings, Security
from kafscale.console.web.app import make_app
from kafscale.testing.secured_broker import SecuredBroker

DEADLINE_SECONDS = 60.0


@asynccontextmanager
async def browsing(settings: ConsoleSettings) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(settings)
    async with trio.open_nursery() as tasks:
        app.state.console.tasks = tasks
        try:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080", timeout=DEADLINE_SECONDS
            ) as client:
                yield client
        finally:
            with trio.CancelScope(shield=True):
                await app.state.console.aclose()
            tasks.cancel_scope.cancel()


async def send(pages: httpx.AsyncClient, path: str, **fields: str) -> httpx.Response:
    """Send a form as the browser does that has loaded a page of the session."""
    return await pages.post(path, data={"csrf_token": csrf_of(await pages.get("/topics")), **fields})


async def wait_for(pages: httpx.AsyncClient, path: str, text: str) -> str:
    """Return a fragment once it has the text."""
    page = ""
    with trio.move_on_after(DEADLINE_SECONDS):
        while text not in page:
            page = (await pages.get(path)).text
            await trio.sleep(0.1)
    assert text in page
    return page


def csrf_of(page: httpx.Response) -> str:
    """Return the token of a page's first form."""
    found = re.search(r'name="csrf_token" value="([^"]+)"', page.text)
    assert found, page.text
    return found[1]


def cells(text: str, name: str) -> list[str]:
    """Return the texts of the row whose first cell has this text."""
    for row in re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL):
        found = [
            re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL)
        ]
        if found and found[0] == name:
            return found
    raise AssertionError(f"no row of {name}")


@asynccontextmanager
async def logged_in(broker: SecuredBroker, user: str, password: str) -> AsyncIterator[httpx.AsyncClient]:
    """A browser whose user has logged in. The broker's protocol is SASL_PLAINTEXT."""
    security = Security(protocol=SecurityProtocol.SASL_PLAINTEXT, mechanisms=[SaslMechanism.SCRAM_SHA_512])
    settings = ConsoleSettings(bootstrap=[Address.parse(broker.bootstrap)], security=security)
    async with browsing(settings) as client:
        credentials = {"mechanism": "SCRAM-SHA-512", "user": user, "password": password}
        assert (await client.post("/login", data=credentials)).headers["location"] == "/"
        yield client
