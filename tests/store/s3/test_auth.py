import calendar
import email.utils
import time
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from kafscale.errors import AccessDenied, StoreUnavailable
from kafscale.store.s3.auth import CredentialSource, SigV4Auth
from kafscale.store.s3.credentials import (
    ANSWER_MAX_BYTES,
    LOCAL_TIMEOUT_SECONDS,
    REFRESH_RETRY_SECONDS,
    default_providers,
    given,
)
from kafscale.store.s3.sigv4 import S3Credentials

START = 1_800_000_000.0
OF_AN_AGENT = default_providers({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}, Path("/nowhere"))


class Agent:
    """A container's agent that gives credentials for an hour, each with a number; `status` makes it refuse."""

    def __init__(self, life_seconds=3600.0):
        self.life_seconds = life_seconds
        self.now = START
        self.status = 200
        self.given_count = 0
        self.delay_seconds = 0.0
        self.source = CredentialSource(OF_AN_AGENT, httpx.MockTransport(self.handle), clock=lambda: self.now)

    async def handle(self, request):
        await trio.sleep(self.delay_seconds)
        if self.status == 0:
            raise httpx.ConnectError("nobody there")
        self.given_count += 1
        body = {
            "AccessKeyId": f"AKID{self.given_count}",
            "SecretAccessKey": "S",
            "Token": "T",
            "Expiration": email.utils.formatdate(self.now + self.life_seconds),
        }
        body["Expiration"] = email.utils.parsedate_to_datetime(body["Expiration"]).isoformat()
        return httpx.Response(self.status, json=body)

    async def key(self):
        return (await self.source.get()).access_key_id


async def test_credentials_are_kept_and_refreshed_before_they_expire():
    agent = Agent()
    assert await agent.key() == await agent.key() == "AKID1"
    agent.now += 3600 - 601
    assert await agent.key() == "AKID1"
    agent.now += 2
    assert await agent.key() == await agent.key() == "AKID2"


async def test_short_lived_credentials_are_not_refreshed_with_every_request():
    agent = Agent(life_seconds=300)
    await agent.key()
    agent.now += 149
    assert await agent.key() == "AKID1"
    agent.now += 2
    assert await agent.key() == "AKID2"


async def test_many_requests_share_one_lookup(autojump_clock):
    agent = Agent()
    agent.delay_seconds = 1
    keys = []

    async def ask():
        keys.append(await agent.key())

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask)
    assert keys == ["AKID1"] * 10
    agent.now += 3500  # due, but still good: who comes second need not wait for it
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert await agent.key() == "AKID1"
    assert keys[-1] == "AKID2"


async def test_a_failure_is_shared_too_and_the_next_request_tries_again(autojump_clock):
    agent = Agent()
    agent.status, agent.delay_seconds = 403, 1
    errors = []

    async def ask():
        with pytest.raises(AccessDenied) as caught:
            await agent.key()
        errors.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert agent.given_count == 1
    assert len(set(errors)) == 1
    assert len(errors) == 5
    agent.status = 200
    assert await agent.key() == "AKID2"


async def test_a_waiter_takes_over_when_the_task_fetching_credentials_is_cancelled(autojump_clock):
    agent = Agent()
    agent.delay_seconds = 1
    keys = []

    async def ask():
        keys.append(await agent.key())

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as leaders:
                leaders.start_soon(agent.key)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
    assert keys == ["AKID1"]


async def test_old_credentials_serve_while_a_refresh_fails(caplog):
    agent = Agent()
    await agent.key()
    agent.now += 3100
    agent.status = 0
    assert await agent.key() == await agent.key() == "AKID1"
    assert len(caplog.records) == 1
    agent.now += 31  # and it is tried again
    assert await agent.key() == "AKID1"
    assert len(caplog.records) == 2
    agent.now += 1000
    with pytest.raises(StoreUnavailable, match="no answer"):
        await agent.key()
    agent.status = 200
    assert await agent.key() == "AKID2"


# --- the auth flow


class Body(httpx.AsyncByteStream):
    """A body without an end: pieces of some bytes, each after some seconds."""

    def __init__(self, piece_bytes, pause_seconds):
        self.piece = b"[" * piece_bytes
        self.pause_seconds = pause_seconds
        self.sent_bytes = 0
        self.is_closed = False

    def __aiter__(self):
        return self

    async def __anext__(self):
        await trio.sleep(self.pause_seconds)
        self.sent_bytes += len(self.piece)
        return self.piece

    async def aclose(self):
        self.is_closed = True


async def look_up(body):
    """How an agent is met that answers with this body: the error, and the seconds that it took."""
    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=body))
    began = trio.current_time()
    with pytest.raises(StoreUnavailable, match="no answer in time"), trio.fail_after(60):
        await CredentialSource(OF_AN_AGENT, transport).get()
    assert body.is_closed
    return trio.current_time() - began


async def test_an_answer_without_end_is_read_no_further_than_credentials_could_be_long(autojump_clock):
    body = Body(64 << 10, 0.001)
    await look_up(body)
    assert body.sent_bytes == ANSWER_MAX_BYTES + (64 << 10)


async def test_an_answer_that_comes_a_byte_at_a_time_is_given_up_at_the_deadline(autojump_clock):
    body = Body(1, LOCAL_TIMEOUT_SECONDS / 2)
    assert await look_up(body) == 3 * LOCAL_TIMEOUT_SECONDS


async def test_a_silent_credentials_agent_times_out_at_the_deadline(autojump_clock):
    agent = Agent()
    agent.delay_seconds = 1_000.0
    began = trio.current_time()
    with pytest.raises(StoreUnavailable, match="no answer in time"):
        await agent.key()
    assert trio.current_time() - began == 3 * LOCAL_TIMEOUT_SECONDS


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"a":' * 200_000])
async def test_an_answer_that_no_parser_takes_is_not_credentials(body):
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=body))
    with pytest.raises(AccessDenied, match="not credentials"):
        await CredentialSource(OF_AN_AGENT, transport).get()


class Store:
    """An S3 at a time of its own, in seconds since the epoch, that accepts one key (or any) and notes what it saw."""

    def __init__(self, now=START, accepts=None):
        self.now, self.accepts, self.seen = now, accepts, []

    def handle(self, request):
        stamp = request.headers["x-amz-date"]
        key = request.headers["authorization"].partition("Credential=")[2].partition("/")[0]
        self.seen.append((stamp, key))
        headers = {"date": email.utils.formatdate(self.now, usegmt=True)}
        if abs(calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ")) - self.now) > 900:
            return httpx.Response(403, headers=headers, text="<Error><Code>RequestTimeTooSkewed</Code></Error>")
        if self.accepts is not None and key != self.accepts:
            return httpx.Response(400, headers=headers, text="<Error><Code>ExpiredToken</Code></Error>")
        return httpx.Response(200, headers=headers)

    async def get(self, auth):
        async with httpx.AsyncClient(transport=httpx.MockTransport(self.handle), auth=auth) as client:
            return (await client.get("https://bucket.example/key?a=b")).status_code


def static_auth():
    credentials = S3Credentials(access_key_id="AKID", secret_access_key="S")
    source = CredentialSource(given(credentials), httpx.MockTransport(lambda request: httpx.Response(500)))
    return SigV4Auth(source, "us-east-1", clock=lambda: START)


async def test_a_request_is_signed_with_the_relevant_headers():
    seen = []

    def handle(request):
        seen.append(request)
        return httpx.Response(200)

    agent = Agent()
    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        headers = {"range": "bytes=0-1", "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "user-agent": "any"}
        auth = SigV4Auth(agent.source, "eu-west-1", clock=lambda: START)
        await client.get("https://bucket.example/k", headers=headers, auth=auth)
    authorization = seen[0].headers["authorization"]
    assert authorization.startswith("AWS4-HMAC-SHA256 Credential=AKID1/20270115/eu-west-1/s3/aws4_request, ")
    assert "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date;x-amz-security-token, " in authorization


async def test_the_servers_time_is_used_after_a_refusal_for_clock_skew(caplog):
    store, auth = Store(now=START + 7200), static_auth()
    assert await store.get(auth) == 200
    assert [stamp for stamp, _ in store.seen] == ["20270115T080000Z", "20270115T100000Z"]
    assert "clock" in caplog.text
    assert await store.get(auth) == 200
    assert len(store.seen) == 3


@pytest.mark.parametrize("date", ["", "today", "Fri, 15 Jan 2027 10:00:00 -0000"])
async def test_a_time_is_taken_from_the_error_where_the_date_has_none(date):
    """`-0000` is UTC as well, and Python reads it as a time without a zone."""
    seen = []

    def handle(request):
        seen.append(request.headers["x-amz-date"])
        if len(seen) > 1:
            return httpx.Response(200)
        text = "<Error><Code>RequestTimeTooSkewed</Code><ServerTime>2027-01-15T10:00:00Z</ServerTime></Error>"
        return httpx.Response(403, headers={"date": date}, text="" if date.endswith("-0000") else text)

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle), auth=static_auth()) as client:
        assert (await client.get("https://bucket.example/")).status_code == 200
    assert seen == ["20270115T080000Z", "20270115T100000Z"]


async def test_credentials_that_seem_expired_by_a_wrong_clock_are_not_looked_up_for_every_request():
    agent = Agent(life_seconds=-3600)
    assert await agent.key() == await agent.key() == "AKID1"
    agent.now += REFRESH_RETRY_SECONDS
    assert await agent.key() == await agent.key() == "AKID2"


@pytest.mark.parametrize("headers", [{}, {"date": "today"}, {"date": email.utils.formatdate(START + 100, usegmt=True)}])
async def test_a_refusal_that_is_not_about_time_is_final(headers):
    seen = []

    def handle(request):
        seen.append(request)
        return httpx.Response(403, headers=headers)

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle), auth=static_auth()) as client:
        assert (await client.get("https://bucket.example/")).status_code == 403
    assert len(seen) == 1


async def test_expired_credentials_are_looked_up_again_once():
    agent = Agent()
    store, auth = Store(accepts="AKID2"), SigV4Auth(agent.source, "us-east-1", clock=lambda: START)
    assert await store.get(auth) == 200
    assert [key for _, key in store.seen] == ["AKID1", "AKID2"]
    store.accepts = "AKID9"
    assert await store.get(auth) == 400
    assert [key for _, key in store.seen] == ["AKID1", "AKID2", "AKID2", "AKID3"]


async def test_discarding_an_old_credential_twice_keeps_the_new_credential():
    agent = Agent()
    first = await agent.source.get()
    agent.source.discard(first)
    second = await agent.source.get()
    agent.source.discard(first)
    assert await agent.source.get() == second
    assert attrs.asdict(second)["access_key_id"] == "AKID2"
