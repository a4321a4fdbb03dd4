"""A real Chromium on the console of a real broker, for `make test-console`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

DEADLINE_SECONDS = 30.0
SIZE = (1280, 900)
SCREENSHOTS_VARIABLE = "SCREENSHOTS"  # directory to keep a picture of each page in
DRIVER, BROWSER = "chromedriver", "chromium"


@attrs.define(eq=False)
class Site:
    """A broker with its console, from a fresh data directory."""

    process: subprocess.Popen[str]
    bootstrap: str
    admin: str
    url: str
    ready_at: float

    def kafscale(self, *arguments: str, stdin: str = "") -> str:
        command = [sys.executable, "-m", "kafscale", *arguments]
        if arguments[0] not in ("flush",):
            command += ["--bootstrap", self.bootstrap]
        return subprocess.run(command, input=stdin, text=True, capture_output=True, check=True).stdout


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    with TemporaryDirectory(prefix="kafscale-") as directory:  # a short name, as pages show it in pictures
        yield from _serve(Path(directory))


def _serve(directory: Path) -> Iterator[Site]:
    free = "127.0.0.1:0"
    command = [sys.executable, "-m", "kafscale", "serve", "--data-dir", str(directory / "data")]
    command += ["--listen", free, "--admin-listen", free, "--console", free]
    with (
        (directory / "log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        words, console = process.stdout.readline().split(), process.stdout.readline().split()
        try:
            yield Site(process, words[4], words[6], console[-1], time.monotonic())
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_SECONDS) == 0, (directory / "log").read_text()


@attrs.define(eq=False)
class Browser:
    driver: webdriver.Chrome
    site: Site

    def open(self, path: str) -> None:
        self.driver.get(self.site.url + path)

    def wait_for(self, text: str) -> None:
        """Wait until the page has the text; scripts may bring it."""
        WebDriverWait(self.driver, DEADLINE_SECONDS).until(
            lambda driver: text in driver.find_element(By.TAG_NAME, "body").text, f"'{text}' is not on the page"
        )

    def wait_for_live_parts(self) -> None:
        """Wait until console.js has reloaded each live part once."""
        reloaded = "return [...document.querySelectorAll('[data-live]')].every(part => part.lastHtml !== undefined)"
        WebDriverWait(self.driver, DEADLINE_SECONDS).until(
            lambda driver: driver.execute_script(reloaded),  # type: ignore[no-untyped-call]
            "a live part was not reloaded",
        )

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def press(self, label: str) -> None:
        self.driver.find_element(By.XPATH, f"//button[normalize-space()='{label}']").click()

    def complaints(self) -> list[str]:
        """Return what the browser has logged since the last call: script errors, refused contents, failed requests."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def overflow_pixels(self) -> int:
        """Return by how much the page is wider than the window."""
        script = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.driver.execute_script(script))  # type: ignore[no-untyped-call]

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", features)

    def picture(self, name: str) -> None:
        """Keep a picture of the page if a directory for pictures is given."""
        if directory := os.environ.get(SCREENSHOTS_VARIABLE):
            self.driver.save_screenshot(str(Path(directory) / f"{name}.png"))


@pytest.fixture(scope="session")
def driver() -> Iterator[webdriver.Chrome]:
    driver, browser = shutil.which(DRIVER), shutil.which(BROWSER)
    if driver is None or browser is None:
        pytest.skip(f"needs {BROWSER} and {DRIVER}: apt-get install chromium chromium-driver")
    options = Options()
    options.binary_location = browser
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--force-prefers-reduced-motion",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=Service(driver)) as chrome:
        yield chrome


@pytest.fixture
def browser(driver: webdriver.Chrome, site: Site) -> Iterator[Browser]:
    found = Browser(driver, site)
    found.resize(*SIZE)
    found.prefer("light")
    yield found
    found.complaints()
