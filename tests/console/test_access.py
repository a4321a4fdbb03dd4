"""Pages of users, ACLs and quotas, on a broker with logins and an authorizer."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator

import httpx
import pytest
import trio
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafscale.testing.secured_broker import SecuredBroker
from tests.console.browsing import csrf_of, logged_in

SECONDS = 20.0
HOSTILE = "<i>eve</i>&\"'"


@pytest.fixture
async def admin(kafscale_secured_broker: SecuredBroker) -> AsyncIterator[httpx.AsyncClient]:
    password = kafscale_secured_broker.client_settings("admin")["sasl.password"]
    async with logged_in(kafscale_secured_broker, "admin", password) as pages:
        yield pages


def topics_of(broker: SecuredBroker, user: str, password: str) -> set[str]:
    """Return the topics that a user sees, by confluent-kafka."""
    settings = {**broker.client_settings("admin"), "sasl.username": user, "sasl.password": password}
    return set(AdminClient(settings).list_topics(timeout=5).topics)


def links(text: str, path: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(rf'action="({path}\?[^"]+)"', text)]


secured = pytest.mark.kafscale(protocol="SASL_PLAINTEXT")


@secured
async def test_a_user_is_added_gets_rights_and_is_deleted(
    admin: httpx.AsyncClient, kafscale_secured_broker: SecuredBroker
) -> None:
    broker = kafscale_secured_broker
    broker.create_topic("orders")
    form = {"csrf_token": csrf_of(await admin.get("/users")), "user": HOSTILE, "password": "s3cret", "again": "s3cret"}
    refused = await admin.post("/users", data={**form, "again": "other"})
    assert (refused.status_code, "the two passwords differ" in refused.text) == (400, True)
    assert (await admin.post("/users", data=form)).headers["location"] == "/users"
    text = (await admin.get("/users")).text
    assert "<i>" not in text
    assert "SCRAM-SHA-256 (8192), SCRAM-SHA-512 (8192)" in text
    assert await trio.to_thread.run_sync(topics_of, broker, HOSTILE, "s3cret") == set()

    acl = {
        "csrf_token": form["csrf_token"],
        "principal": f"User:{HOSTILE}",
        "permission": "ALLOW",
        "operation": ["DESCRIBE", "READ"],
        "resource_type": "TOPIC",
        "resource_name": "ord",
        "pattern_type": "PREFIXED",
        "host": "*",
    }
    assert (await admin.post("/acls", data=acl)).headers["location"] == "/acls"
    assert await trio.to_thread.run_sync(topics_of, broker, HOSTILE, "s3cret") == {"orders"}
    listed = (await admin.get("/acls", params={"principal": f"User:{HOSTILE}"})).text
    assert "<i>" not in listed
    deleting = links(listed, "/acls/delete")
    assert len(deleting) == 2
    assert len(links((await admin.get("/acls?type=TOPIC&name=orders")).text, "/acls/delete")) >= 2
    for link in deleting:
        assert (await admin.post(link, data={"csrf_token": form["csrf_token"]})).status_code == 303
    assert (await admin.post(deleting[0], data={"csrf_token": form["csrf_token"]})).status_code == 400
    assert await trio.to_thread.run_sync(topics_of, broker, HOSTILE, "s3cret") == set()

    (delete,) = [link for link in links((await admin.get("/users")).text, "/users/delete") if "eve" in link]
    assert (await admin.post(delete, data={"csrf_token": form["csrf_token"]})).headers["location"] == "/users"
    with pytest.raises(KafkaException):
        await trio.to_thread.run_sync(topics_of, broker, HOSTILE, "s3cret")


@secured
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operation": []}, "choose an operation"),
        ({"operation": "SING"}, "&#39;SING&#39; is unknown"),
        ({"resource_name": ""}, "give a name"),
        ({"principal": "alice"}, "User:alice"),
    ],
)
async def test_a_wrong_acl_is_refused(admin: httpx.AsyncClient, change: dict[str, str], message: str) -> None:
    given = {
        "csrf_token": csrf_of(await admin.get("/acls")),
        "principal": "User:alice",
        "permission": "ALLOW",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource_name": "x",
        "pattern_type": "LITERAL",
    }
    answer = await admin.post("/acls", data=given | change)
    assert (answer.status_code, message in answer.text) == (400, True)


@secured
async def test_quotas_are_set_and_removed(admin: httpx.AsyncClient) -> None:
    token = csrf_of(await admin.get("/quotas"))
    form = {"csrf_token": token, "key": "producer_byte_rate", "value": "1024"}
    refused = await admin.post("/quotas", data=form)
    assert (refused.status_code, "name a user" in refused.text) == (400, True)
    for value in ("nan", "-1", "x", "0"):
        assert (await admin.post("/quotas", data={**form, "user": "alice", "value": value})).status_code == 400
    assert (await admin.post("/quotas", data={**form, "user": HOSTILE})).headers["location"] == "/quotas"
    assert (await admin.post("/quotas", data={**form, "default:client-id": "on"})).headers["location"] == "/quotas"
    text = (await admin.get("/quotas")).text
    assert "<i>" not in text
    assert '<td class="number">1\u2009024</td>' in text
    assert "client-id <em>default</em>" in text
    removing = links(text, "/quotas/remove")
    assert len(removing) == 2
    for link in removing:
        assert (await admin.post(link, data={"csrf_token": token})).headers["location"] == "/quotas"
    assert "There are no quotas." in (await admin.get("/quotas")).text


@secured
async def test_a_user_without_rights_sees_which_are_missing(kafscale_secured_broker: SecuredBroker) -> None:
    kafscale_secured_broker.add_user("alice", "alice's")
    async with logged_in(kafscale_secured_broker, "alice", "alice's") as pages:
        for path, right in [
            ("/users", "Alter"),
            ("/acls", "Alter"),
            ("/quotas", "AlterConfigs"),
            ("/brokers", "AlterConfigs"),
        ]:
            page = await pages.get(path)
            assert page.status_code == 200, path
            assert f"Needs the ACL {right} on the cluster." in page.text, path
            assert "disabled" in page.text
        form = {"csrf_token": csrf_of(await pages.get("/users")), "user": "x", "password": "y", "again": "y"}
        answer = await pages.post("/users", data=form)
        assert (answer.status_code, "CLUSTER_AUTHORIZATION_FAILED" in answer.text) == (400, True)


async def test_a_broker_without_authorizer_says_so(pages: httpx.AsyncClient) -> None:
    text = (await pages.get("/acls")).text
    assert "start it with --authorizer acl" in text
    assert "Needs the ACL" not in text
