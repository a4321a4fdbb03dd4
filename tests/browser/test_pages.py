"""Each page of the console in a real browser: contents, accessibility by axe, narrow and dark windows, live parts."""

from __future__ import annotations

import json
import os
import signal

import pytest
from axe_selenium_python import Axe
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from kafscale.console.pages.base import NAVIGATION
from tests.browser.conftest import DEADLINE_SECONDS, Browser, Site

pytestmark = pytest.mark.browser

PAGES = {name.lower(): path for path, name in NAVIGATION} | {
    "topic": "/topics/orders",
    "configs": "/topics/orders/configs",
    "messages": "/topics/orders/messages",
    "markup": "/topics/payments/messages",
    "group": "/groups/one?group=billing",
    "broker": "/brokers/0",
}
NARROW = (390, 844)
MARKUP = '<script>document.title = "broken"</script><img src=x onerror=alert(1)>'
RECORDS_COUNT = 200
OLD_RULES = ("dlitem", "definition-list")  # this axe-core knows no <div> in a <dl>, which HTML allows


@pytest.fixture(scope="module", autouse=True)
def contents(site: Site) -> None:
    """Topics, records and a group, as on a cluster in use."""
    site.kafscale("topics", "create", "orders", "--partitions", "3")
    site.kafscale("topics", "create", "payments", "--partitions", "6", "--config", "cleanup.policy=compact")
    orders = "".join(
        f"customer-{number % 17}\t{json.dumps({'order': number, 'cents': number * 37 % 5000})}\n"
        for number in range(RECORDS_COUNT)
    )
    site.kafscale("produce", "orders", "--key-separator", "\t", stdin=orders)
    site.kafscale("produce", "payments", "--key-separator", "\t", stdin=f"k\t{MARKUP}\n")
    site.kafscale("consume", "orders", "--from-beginning", "--group", "billing", "--max-messages", "120")
    site.kafscale("flush", "--admin", site.admin)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_without_complaints_and_fits_narrow_windows(browser: Browser, name: str) -> None:
    browser.open(PAGES[name])
    assert len(browser.find_all("h1")) == 1
    current = browser.find("nav a[aria-current=page]").get_attribute("href").removeprefix(browser.site.url)
    assert PAGES[name].startswith(current)
    browser.wait_for_live_parts()
    browser.picture(name)
    assert browser.overflow_pixels() <= 0
    browser.resize(*NARROW)
    assert browser.overflow_pixels() <= 0
    assert browser.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_barrier_on_a_page(browser: Browser, name: str, scheme: str) -> None:
    """axe-core checks names of fields, contrasts, landmarks, tables."""
    browser.prefer(scheme)
    browser.open(PAGES[name])
    if scheme == "dark":
        browser.picture(f"{name}-dark")
    axe = Axe(browser.driver)
    axe.inject()
    violations = axe.run()["violations"]
    found = {rule["id"]: [node["html"][:120] for node in rule["nodes"][:3]] for rule in violations}
    assert {rule: nodes for rule, nodes in found.items() if rule not in OLD_RULES} == {}


def test_markup_of_a_record_is_shown_and_not_run(browser: Browser) -> None:
    browser.open(PAGES["markup"])
    browser.wait_for("onerror=alert(1)")
    assert browser.driver.title != "broken"
    assert browser.complaints() == []


def test_the_first_key_reaches_the_contents(browser: Browser) -> None:
    browser.open("/topics")
    browser.find("body").send_keys(Keys.TAB)
    skip = browser.driver.switch_to.active_element
    assert skip.text == "Skip to the content"
    skip.send_keys(Keys.ENTER)
    assert browser.driver.current_url.endswith("#main")


def test_a_statement_of_sql_is_answered_in_place(browser: Browser) -> None:
    browser.open("/sql")
    field = browser.find("textarea[name=statement]")
    field.clear()
    field.send_keys("SELECT partition, count(*) AS records FROM orders GROUP BY partition ORDER BY partition")
    browser.press("Run")
    browser.wait_for("3 rows in")
    assert len(browser.find_all("svg rect.bar")) == 3
    browser.picture("sql-answer")
    assert browser.complaints() == []


def test_the_check_of_the_bucket_ends_in_place(browser: Browser) -> None:
    browser.open("/bucket")
    browser.press("Verify all objects")
    browser.wait_for("All objects are whole.")
    browser.picture("bucket-verified")


def test_a_broker_that_is_gone_marks_live_parts_until_it_is_back(site: Site, browser: Browser) -> None:
    browser.open("/topics")
    os.kill(site.process.pid, signal.SIGSTOP)
    try:
        WebDriverWait(browser.driver, DEADLINE_SECONDS * 2).until(
            lambda driver: driver.find_elements(By.CSS_SELECTOR, "[data-live].stale")
        )
    finally:
        os.kill(site.process.pid, signal.SIGCONT)
    WebDriverWait(browser.driver, DEADLINE_SECONDS).until(
        lambda driver: not driver.find_elements(By.CSS_SELECTOR, "[data-live].stale")
    )
