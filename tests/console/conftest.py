from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from kafscale.config import Address, SaslMechanism, SecurityProtocol
from kafscale.console.settings import ConsoleSettings, Security
from kafscale.console.web.app import make_app
from kafscale.testing.background_broker import BackgroundBroker
from kafscale.testing.secured_broker import SecuredBroker


@pytest.fixture
async def pages(kafscale_broker: BackgroundBroker) -> AsyncIterator[httpx.AsyncClient]:
    """A browser without scripts, with cookies, on the console of a broker."""
    app = make_app(ConsoleSettings(bootstrap=[Address.parse(kafscale_broker.bootstrap)]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080") as client:
        yield client
    await app.state.console.aclose()


@pytest.fixture
async def secured_pages(kafscale_secured_broker: SecuredBroker) -> AsyncIterator[httpx.AsyncClient]:
    kafscale_secured_broker.add_user("alice", "alice's")
    security = Security(protocol=SecurityProtocol.SASL_PLAINTEXT, mechanisms=[SaslMechanism.SCRAM_SHA_512])
    app = make_app(ConsoleSettings(bootstrap=[Address.parse(kafscale_secured_broker.bootstrap)], security=security))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080") as client:
        yield client
    await app.state.console.aclose()
