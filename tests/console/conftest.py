from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from kafscale.config import Address
from kafscale.console.settings import ConsoleSettings
from kafscale.console.web.app import make_app
from kafscale.testing.background_broker import BackgroundBroker


@pytest.fixture
async def pages(kafscale_broker: BackgroundBroker) -> AsyncIterator[httpx.AsyncClient]:
    """A browser without scripts, with cookies, on the console of a broker."""
    app = make_app(ConsoleSettings(bootstrap=[Address.parse(kafscale_broker.bootstrap)]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080") as client:
        yield client
    await app.state.console.aclose()
