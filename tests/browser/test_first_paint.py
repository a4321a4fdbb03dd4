"""The first page of a fresh install. The times are printed; a bound would fail on a busy machine."""

from __future__ import annotations

import time

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from tests.browser.conftest import DEADLINE_SECONDS, Browser, Site

pytestmark = pytest.mark.browser

PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def test_a_fresh_install_shows_its_first_page(site: Site, browser: Browser) -> None:
    waited_seconds = time.monotonic() - site.ready_at
    for visit in ("first", "second"):
        browser.open("/")
        paint_ms = WebDriverWait(browser.driver, DEADLINE_SECONDS).until(
            lambda driver: driver.execute_script(PAINT)  # type: ignore[no-untyped-call]
        )
        print(f"\n{visit} visit: first contentful paint after {paint_ms:.0f} ms")
        browser.wait_for("Overview")
    print(f"the browser was ready {waited_seconds:.1f} s after the broker")
