"""A browser's forms: the token of the session's form, and a form that is sent."""

from __future__ import annotations

import re

import httpx


async def send(pages: httpx.AsyncClient, path: str, **fields: str) -> httpx.Response:
    """Send a form as the browser does that has loaded a page of the session."""
    text = (await pages.get("/topics")).text
    found = re.search(r'name="csrf_token" value="([^"]+)"', text)
    assert found is not None
    return await pages.post(path, data={"csrf_token": found[1], **fields})


def cells(text: str, name: str) -> list[str]:
    """Return the texts of the row whose first cell has this text."""
    for row in re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL):
        found = [
            re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL)
        ]
        if found and found[0] == name:
            return found
    raise AssertionError(f"no row of {name}")
