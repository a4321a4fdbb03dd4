from __future__ import annotations

import re

import httpx
import pytest

from kafscale.console.pages.base import NAVIGATION


async def test_a_page_of_another_name_is_refused(pages: httpx.AsyncClient) -> None:
    """A web page whose name was pointed at loopback has its own name in Host."""
    for host, status in [("evil.example", 403), ("localhost:8080", 200), ("[::1]:8080", 200), ("10.0.0.7", 200)]:
        assert (await pages.get("/", headers={"host": host})).status_code == status, host


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
async def test_a_form_of_another_site_is_refused(pages: httpx.AsyncClient, headers: dict[str, str]) -> None:
    await pages.get("/")
    answer = await pages.post("/logout", headers=headers)
    assert (answer.status_code, answer.text) == (403, "this request comes from a page of another site\n")


async def test_a_form_without_the_token_of_its_session_changes_nothing(pages: httpx.AsyncClient) -> None:
    first = (await pages.get("/")).cookies["kafscale-console"]
    for token in ("", "wrong"):
        assert (await pages.post("/logout", data={"csrf_token": token})).status_code == 403
    await pages.get("/")
    assert pages.cookies["kafscale-console"] == first


async def test_every_answer_forbids_foreign_scripts_and_frames(pages: httpx.AsyncClient) -> None:
    for path in ("/", "/topics", "/static/console.js", "/nothing"):
        policy = (await pages.get(path)).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy


async def test_pages_have_no_script_or_style_in_line(pages: httpx.AsyncClient) -> None:
    for path, _ in NAVIGATION:
        text = (await pages.get(path)).text
        assert not re.search(r"<style|style=|\son[a-z]+=|<script(?! type=\"module\" src=\"/static/)", text)


async def test_a_form_larger_than_the_bound_is_refused(pages: httpx.AsyncClient) -> None:
    answer = await pages.post(
        "/login", content=b"a" * (3 << 20), headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert answer.status_code == 413
