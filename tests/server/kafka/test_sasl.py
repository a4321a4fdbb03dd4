"""Connections to a listener with SASL: what they may do before they have authenticated, and after their session."""

import struct
import threading
import tracemalloc
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio
import trio.testing

from kafscale.api.handling import authentication
from kafscale.api.handling.authentication import Authenticator
from kafscale.cluster.registries.scram_users import CredentialKey
from kafscale.cluster.registries.topics import NewTopic
from kafscale.config import Limits, Listener, SaslMechanism, SaslSettings, SecurityProtocol
from kafscale.errors import BrokerUnavailable
from kafscale.security.verifiers import salt_password
from kafscale.wire import codec
from kafscale.wire.error_codes import (
    ILLEGAL_SASL_STATE,
    NONE,
    SASL_AUTHENTICATION_FAILED,
    UNSUPPORTED_SASL_MECHANISM,
    UNSUPPORTED_VERSION,
)
from kafscale.wire.frames import RequestHeader, request_frame
from kafscale.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafscale.wire.messages.topics import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.api.one_topic import TOPIC, produce_batch
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings
from tests.devtools.processes.sasl import ALICE, PASSWORD, SCRAMS, plain_message, scram_client, verifier_of

SASL = SecurityProtocol.SASL_PLAINTEXT
FAST = {"connection_failed_authentication_delay_ms": 100}


@asynccontextmanager
async def sasl_broker(tmp_path, *, limits=None, **sasl):
    """Run a broker that knows alice."""
    (tmp_path / "key").write_text("ab" * 32)
    given = {"sasl_mechanisms": (*SCRAMS, SaslMechanism.PLAIN), "secret_key_file": tmp_path / "key"}
    settings = SaslSettings(**(given | FAST | sasl))
    async with memory_broker(memory_parts(), memory_settings(sasl=settings, limits=limits or Limits())) as running:
        users = running.broker.services.scram_users
        await users.alter({CredentialKey(each, ALICE): verifier_of(each, PASSWORD) for each in SCRAMS})
        yield running


async def connect(running):
    return await running.connect(SASL)


async def handshake(connection, mechanism="PLAIN", version=1):
    call = connection.call(SaslHandshakeRequest, SaslHandshakeResponse, version=version)
    body = codec.encode(SaslHandshakeRequest(mechanism=mechanism), version)
    return await (await connection.send_encoded(call, body)).wait()


async def authenticate(connection, data):
    return await connection.request(SaslAuthenticateRequest(auth_bytes=data), SaslAuthenticateResponse)


async def log_in(connection, password=PASSWORD):
    """Log in by SCRAM, for which nothing is done in threads, whose time a clock that jumps does not know."""
    client = scram_client(SCRAMS[0], password=password)
    assert (await handshake(connection, SCRAMS[0].value)).error_code == NONE
    first = await authenticate(connection, client.get_client_first().encode())
    client.set_server_first(bytes(first.auth_bytes).decode())
    return await authenticate(connection, client.get_client_final().encode())


async def metadata(connection):
    return await connection.request(MetadataRequest(topics=[]), MetadataResponse)


async def is_closed(connection):
    with pytest.raises(BrokerUnavailable):
        await metadata(connection)
    return True


@pytest.mark.parametrize("mechanism", SCRAMS)
async def test_scram(mechanism, tmp_path, autojump_clock):
    async with sasl_broker(tmp_path) as running:
        connection, client = await connect(running), scram_client(mechanism)
        assert (await handshake(connection, mechanism.value)).mechanisms == ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]
        first = await authenticate(connection, client.get_client_first().encode())
        client.set_server_first(bytes(first.auth_bytes).decode())
        final = await authenticate(connection, client.get_client_final().encode())
        client.set_server_final(bytes(final.auth_bytes).decode())
        assert (final.error_code, final.session_lifetime_ms) == (NONE, 0)
        await metadata(connection)
        (peer,) = [each.peer for each in running.broker.acceptor.connections]
        assert str(peer.principal) == "User:alice"


@pytest.mark.parametrize("request_", [MetadataRequest(topics=[]), ProduceRequest(acks=1, timeout_ms=1, topic_data=[])])
async def test_before_a_login_nothing_else_is_answered(request_, tmp_path, autojump_clock):
    async with sasl_broker(tmp_path) as running:
        for step in range(2):
            connection = await connect(running)
            if step:
                await handshake(connection)
            with pytest.raises(BrokerUnavailable):
                await connection.request(request_, MetadataResponse)


async def test_api_versions_can_be_requested_again_before_the_login(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path) as running:
        connection = await connect(running)
        request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        response = await connection.request(request, ApiVersionsResponse)
        assert {17, 36} <= {each.api_key for each in response.api_keys}
        assert (await log_in(connection)).error_code == NONE


async def test_a_wrong_password_is_answered_late_and_ends_the_connection(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path, connection_failed_authentication_delay_ms=5000) as running:
        connection = await connect(running)
        since = trio.current_time()
        answer = await log_in(connection, "wrong")
        assert (answer.error_code, answer.error_message) == (
            SASL_AUTHENTICATION_FAILED,
            "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256",
        )
        assert trio.current_time() - since >= 5
        assert await is_closed(connection)


async def test_large_logins_that_fail_keep_no_long_request_waiting_and_are_not_kept(tmp_path, autojump_clock):
    """Eight of half a megabyte had all the room for long requests until they were refused, and others came after."""
    async with sasl_broker(tmp_path, connection_failed_authentication_delay_ms=10_000) as running:
        good, bad = await connect(running), [await connect(running) for _ in range(10)]
        assert (await log_in(good)).error_code == NONE
        for each in bad:
            await handshake(each)
        token = bytes(500_000)
        tracemalloc.start()
        try:
            async with trio.open_nursery() as nursery:
                for each in bad:
                    nursery.start_soon(authenticate, each, token)
                await trio.testing.wait_all_tasks_blocked()
                held_bytes, _ = tracemalloc.get_traced_memory()
                since = trio.current_time()
                long = MetadataRequest(topics=[MetadataRequestTopic(name=f"{number:>200}") for number in range(100)])
                await good.request(long, MetadataResponse)
                assert trio.current_time() - since < 1
                nursery.cancel_scope.cancel()
        finally:
            tracemalloc.stop()
        assert held_bytes < 5 * len(token)


async def test_keys_are_derived_in_a_thread(tmp_path, monkeypatch):
    """`tests/hostile` has what that is good for."""
    threads = []

    def noting(*args):
        threads.append(threading.current_thread())
        return salt_password(*args)

    monkeypatch.setattr(authentication, "salt_password", noting)
    async with sasl_broker(tmp_path) as running:
        for password in (PASSWORD, "wrong"):
            connection = await connect(running)
            await handshake(connection)
            answer = await authenticate(connection, plain_message(password=password))
            assert answer.error_code == (NONE if password == PASSWORD else SASL_AUTHENTICATION_FAILED)
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_requests_that_were_sent_together_with_a_wrong_password_are_not_answered(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path) as running:
        stream = running.open_stream(protocol=SASL)
        parts = []
        for number, message in enumerate(
            [
                SaslHandshakeRequest(mechanism="PLAIN"),
                SaslAuthenticateRequest(auth_bytes=b"no message of PLAIN"),
                SaslAuthenticateRequest(auth_bytes=plain_message()),
                SaslHandshakeRequest(mechanism="PLAIN"),
            ]
        ):
            version = 1
            header = RequestHeader(message.API_KEY, version, number, "c")
            parts += request_frame(header, codec.encode(message, version), flexible_header=False)
        await stream.send_all(b"".join(parts))
        received = b""
        while data := await stream.receive_some():
            received += data
        answers = []
        while received:
            (size,) = struct.unpack(">i", received[:4])
            answers.append(received[4 : 4 + size])
            received = received[4 + size :]
        assert [int.from_bytes(each[:4], "big") for each in answers] == [0, 1]
        assert int.from_bytes(answers[1][4:6], "big") == SASL_AUTHENTICATION_FAILED


async def test_requests_out_of_order_are_refused(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path) as running:
        connection = await connect(running)
        assert (await authenticate(connection, plain_message())).error_code == ILLEGAL_SASL_STATE
        assert await is_closed(connection)
        connection = await connect(running)
        await handshake(connection)
        assert (await handshake(connection)).error_code == ILLEGAL_SASL_STATE
        assert await is_closed(connection)


async def test_a_mechanism_that_is_not_enabled_and_old_handshakes(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path) as running:
        connection = await connect(running)
        answer = await handshake(connection, "GSSAPI")
        assert answer.error_code == UNSUPPORTED_SASL_MECHANISM
        assert "PLAIN" in answer.mechanisms
        assert await is_closed(connection)
        connection = await connect(running)
        assert (await handshake(connection, version=0)).error_code == UNSUPPORTED_VERSION
        assert await is_closed(connection)


async def test_sasl_where_there_is_none(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path) as running:
        connection = await running.connect()
        assert (await handshake(connection)).error_code == ILLEGAL_SASL_STATE
        assert (await authenticate(connection, b"")).error_code == ILLEGAL_SASL_STATE
        await metadata(connection)


@pytest.mark.parametrize("sent", [b"", b"\0", b"\0\0\0\x20" + b"\0\x12"], ids=["nothing", "a byte", "half a request"])
async def test_a_client_that_does_not_log_in_in_time_is_disconnected(sent, tmp_path, autojump_clock):
    async with sasl_broker(tmp_path, sasl_authentication_timeout_seconds=20) as running:
        stream = running.open_stream(protocol=SASL)
        since = trio.current_time()
        if sent:
            await stream.send_all(sent)
        with trio.fail_after(60):
            assert await stream.receive_some() == b""
        assert 19 < trio.current_time() - since < 22


async def test_a_client_that_only_asks_for_versions_is_disconnected_too(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path, sasl_authentication_timeout_seconds=20) as running:
        connection = await connect(running)
        request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        answered_count = 0
        with suppress(BrokerUnavailable):
            while answered_count < 30:
                await connection.request(request, ApiVersionsResponse)
                answered_count += 1
                await trio.sleep(1)
        assert 18 <= answered_count <= 21


async def test_an_authenticated_client_may_stay_silent_past_the_login_timeout(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path, sasl_authentication_timeout_seconds=20) as running:
        connection = await connect(running)
        await log_in(connection)
        await trio.sleep(300)
        await metadata(connection)


@pytest.mark.parametrize("api_key", [0, 17, 18, 36])
async def test_large_requests_are_refused_before_they_have_come(api_key, tmp_path, autojump_clock):
    async with sasl_broker(tmp_path, sasl_server_max_receive_bytes=100_000) as running:
        stream = running.open_stream(protocol=SASL)
        await stream.send_all(struct.pack(">ihhih", 100_001, api_key, 1, 1, -1))
        with trio.fail_after(5):
            assert await stream.receive_some() == b""


async def test_a_large_produce_before_the_login_gets_none_of_the_pool(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path) as running:
        stream = running.open_stream(protocol=SASL)
        await stream.send_all(struct.pack(">ihhih", 300_000, 0, 3, 1, -1) + bytes(70_000))
        with trio.fail_after(5):
            assert await stream.receive_some() == b""


async def test_the_full_frame_size_limit_applies_after_the_login(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path, sasl_server_max_receive_bytes=4096) as running:
        connection = await connect(running)
        await log_in(connection)
        response = await connection.request(
            attrs.evolve(MetadataRequest(topics=[]), allow_auto_topic_creation=False), MetadataResponse
        )
        assert response.brokers
        (served,) = running.broker.acceptor.connections
        assert served._frames.max_frame_bytes == running.broker.settings.limits.max_frame_bytes


async def test_the_first_request_after_the_login_has_the_full_size_limit(tmp_path, autojump_clock):
    """It was taken for a stranger's: a producer that connected anew for more than two large batches was refused."""
    async with sasl_broker(tmp_path, limits=Limits(max_message_bytes=32 << 10)) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        connection = await connect(running)
        await log_in(connection)
        data = PartitionProduceData(index=0, records=memoryview(bytes(200 << 10)))
        topics = [TopicProduceData(name=TOPIC, partition_data=[data])]
        response = await connection.request(ProduceRequest(acks=1, timeout_ms=1, topic_data=topics), ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code != NONE


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
async def test_modules_for_logins_are_imported_at_the_start(protocol, autojump_clock, monkeypatch):
    """Where there are logins; not by the first one, while others are served."""
    made = []
    monkeypatch.setattr(Authenticator, "_make_exchange", lambda _, mechanism: made.append(mechanism))
    settings = memory_settings(
        sasl=SaslSettings(sasl_mechanisms=SCRAMS), listeners=(Listener(protocol, "127.0.0.1", 9092),)
    )
    async with memory_broker(memory_parts(), settings):
        assert made == (list(SCRAMS) if protocol == "SASL_PLAINTEXT" else [])


async def test_a_session_that_is_over(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path, connections_max_reauth_ms=60_000) as running:
        connection = await connect(running)
        assert (await log_in(connection)).session_lifetime_ms == 60_000
        await trio.sleep(59)
        await metadata(connection)
        assert (await log_in(connection)).error_code == NONE
        await trio.sleep(59)
        await metadata(connection)
        await trio.sleep(2)
        assert await is_closed(connection)


async def test_the_short_way_of_produce_ends_with_the_session(tmp_path, autojump_clock):
    """Produces that are like an earlier one are not looked at by the general way, and so not by its gate."""
    async with sasl_broker(tmp_path, connections_max_reauth_ms=60_000) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        connection = await connect(running)
        await log_in(connection)
        for _ in range(5):
            await produce_batch(connection, [1])
        await trio.sleep(61)
        with pytest.raises(BrokerUnavailable):
            await produce_batch(connection, [1])
        partition = running.broker.services.log.partition_named(TOPIC, 0)
        assert partition.next_offset == 5


async def test_produces_go_on_over_new_logins(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path, connections_max_reauth_ms=60_000) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        connection = await connect(running)
        for _ in range(5):
            assert (await log_in(connection)).error_code == NONE
            for _ in range(5):
                await produce_batch(connection, [1])
                await trio.sleep(11)


async def test_a_removed_user_keeps_its_session_until_it_reauthenticates(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path, connections_max_reauth_ms=60_000) as running:
        connection = await connect(running)
        await log_in(connection)
        await running.broker.services.scram_users.alter({CredentialKey(each, ALICE): None for each in SCRAMS})
        await metadata(connection)
        assert (await log_in(connection)).error_code == SASL_AUTHENTICATION_FAILED
        assert await is_closed(connection)
        other = await connect(running)
        assert (await log_in(other)).error_code == SASL_AUTHENTICATION_FAILED


async def test_logins_are_counted(tmp_path, autojump_clock):
    async with sasl_broker(tmp_path) as running:
        await log_in(await connect(running))
        await log_in(await connect(running), "wrong")
        text = running.broker.metrics.expose()
        assert 'kafscale_authentications_total{mechanism="SCRAM-SHA-256",outcome="succeeded"} 1' in text
        assert 'kafscale_authentications_total{mechanism="SCRAM-SHA-256",outcome="failed"} 1' in text
