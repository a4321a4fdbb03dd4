from __future__ import annotations

import httpx
import pytest

from kafscale.console.settings import Security
from kafscale.errors import ConfigError
from kafscale.testing.secured_broker import SecuredBroker

pytestmark = pytest.mark.kafscale(protocol="SASL_PLAINTEXT")
CREDENTIALS = {"mechanism": "SCRAM-SHA-512", "user": "alice", "password": "alice's"}


async def test_a_user_logs_in_and_out(secured_pages: httpx.AsyncClient) -> None:
    assert (await secured_pages.get("/")).headers["location"] == "/login"
    assert (await secured_pages.post("/login", data=CREDENTIALS)).headers["location"] == "/"
    page = (await secured_pages.get("/")).text
    assert "<span>alice</span>" in page
    token = page.split('name="csrf_token" value="')[1].split('"')[0]
    assert (await secured_pages.post("/logout", data={"csrf_token": token})).headers["location"] == "/login"
    assert (await secured_pages.get("/")).headers["location"] == "/login"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"password": "wrong"}, "SCRAM-SHA-512"),
        ({"user": ""}, "Enter a user and a password."),
        ({"mechanism": "OAUTHBEARER"}, "Paste an access token."),
        ({"mechanism": "OAUTHBEARER", "token": "a b"}, "no spaces"),
        ({"mechanism": "NTLM"}, "NTLM"),
    ],
)
async def test_a_refused_login_says_why(secured_pages: httpx.AsyncClient, change: dict[str, str], message: str) -> None:
    answer = await secured_pages.post("/login", data=CREDENTIALS | change)
    assert answer.status_code == 403
    assert message in answer.text
    assert "kafscale-console" not in secured_pages.cookies


async def test_a_user_sees_only_described_topics(
    secured_pages: httpx.AsyncClient, kafscale_secured_broker: SecuredBroker
) -> None:
    """The console is the user for the broker, so the broker's ACLs hold."""
    kafscale_secured_broker.create_topic("secret")
    await secured_pages.post("/login", data=CREDENTIALS)
    assert "secret" not in (await secured_pages.get("/topics")).text


def test_credentials_in_the_settings_of_the_console_are_refused() -> None:
    with pytest.raises(ConfigError, match="log in with their own credentials"):
        Security.read({"security.protocol": "SASL_SSL", "sasl.username": "alice"})
