"""Attacks on logins themselves: messages and tokens that are huge, counts of iterations, downgrades, channels, replay.

Each is made over a listener of a broker process, by what goes over the wire; `tests/security` has the same of parsers
and state machines alone, and more of them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pytest
import trio

from kafscale.cli.main import run
from kafscale.client.client import connect
from kafscale.client.connection import Connection
from kafscale.client.consumer import LATEST, list_offsets
from kafscale.client.producer import Producer
from kafscale.config import Address, SaslMechanism, SecurityProtocol
from kafscale.login.sasl import ClientSasl
from kafscale.wire import codec
from kafscale.wire.error_codes import (
    ILLEGAL_SASL_STATE,
    NONE,
    SASL_AUTHENTICATION_FAILED,
    UNACCEPTABLE_CREDENTIAL,
    UNSUPPORTED_SASL_MECHANISM,
    UNSUPPORTED_VERSION,
)
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    ScramCredentialUpsertion,
)
from kafscale.wire.messages.topics import MetadataRequest, MetadataResponse
from kafscale.wire.records import Record, build_batch
from tests.devtools.processes import timed_loop
from tests.devtools.processes.sasl import (
    ALICE,
    PASSWORD,
    SaslBroker,
    oauth_message,
    plain_message,
    sasl_broker,
    scram_client,
    sign,
    signing_key,
)
from tests.hostile.hostile import bystander, next_answer, raw_connection, raw_connections, request_bytes

KIB = 1 << 10
HUGE_BYTES = 500 * KIB  # a request before the login may have 512 KiB
GROWN_MAX_MIB = 150
SCRAM, PLAIN, OAUTH = SaslMechanism.SCRAM_SHA_256, SaslMechanism.PLAIN, SaslMechanism.OAUTHBEARER
CLEAR, SECURED = SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL
TOPIC = "not-theirs"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    """One that knows alice, and has a listener for each way to reach it."""
    password_file = tmp_path_factory.mktemp("logins") / "password"
    password_file.write_text(PASSWORD)
    quick = ("--connection-failed-authentication-delay", "10ms")
    with sasl_broker(*quick, program=timed_loop.PROGRAM) as running:
        from_file = ("--password-file", str(password_file), "--iterations", "4096")
        assert run(["users", "add", ALICE, *from_file, "--bootstrap", running.process.bootstrap]) == 0
        yield running
        assert running.process.returncode is None, running.process.log


def address_of(broker: SaslBroker, protocol: SecurityProtocol = CLEAR) -> Address:
    return Address.parse(broker.bootstrap(protocol))


def begun_login(mechanism: str, version: int = 1) -> bytes:
    return request_bytes(SaslHandshakeRequest(mechanism=mechanism), version)


def answer_to(data: bytes) -> bytes:
    return request_bytes(SaslAuthenticateRequest(auth_bytes=data), 2)


async def send_login(stream: trio.SocketStream, data: bytes) -> SaslAuthenticateResponse | None:
    """Send the next message of a login; None where the connection is closed instead of an answer."""
    await stream.send_all(answer_to(data))
    answer = await next_answer(stream)
    return None if answer is None else codec.decode(SaslAuthenticateResponse, 2, answer[5:])


async def begin(stream: trio.SocketStream, mechanism: SaslMechanism) -> None:
    await stream.send_all(begun_login(mechanism.value))
    answer = await next_answer(stream)
    assert answer is not None
    assert codec.decode(SaslHandshakeResponse, 1, answer[4:]).error_code == NONE


async def has_ended(stream: trio.SocketStream) -> bool:
    """Tell whether the broker closes the connection without another answer."""
    with trio.fail_after(10):
        return await next_answer(stream) is None


async def login_is_refused(address: Address, mechanism: SaslMechanism, messages: Sequence[bytes]) -> None:
    """Log in by these messages. It ends with a refusal, after which the connection is closed."""
    async with raw_connection(address) as stream:
        await begin(stream, mechanism)
        for message in messages:
            answer = await send_login(stream, message)
            assert answer is not None
            if answer.error_code != NONE:
                break
        assert answer.error_code == SASL_AUTHENTICATION_FAILED, answer
        assert await has_ended(stream)


# ---- what is huge ----------------------------------------------------------------------------------------------------


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def huge_messages() -> dict[str, tuple[SaslMechanism, bytes]]:
    """Messages that are as large as a request may be, or as a token may be, each so that another thing is large."""
    nested = encoded(b'{"a":' * 2000 + b"1" + b"}" * 2000)
    digits = encoded(b'{"sub":"alice","exp":' + b"9" * 11_000 + b"}")
    stranger = sign({"more": "x" * 11_000}, key=signing_key("EC", "of somebody else"))
    return {
        "a token": (OAUTH, oauth_message("a" * HUGE_BYTES)),
        "parts of a token": (OAUTH, oauth_message("." * HUGE_BYTES)),
        "extensions": (OAUTH, b"n,,\x01" + b"auth=Bearer a\x01" + b"key=" + b"v" * HUGE_BYTES + b"\x01\x01"),
        "nesting": (OAUTH, oauth_message(f"{nested}.{nested[:1000]}.AAAA")),
        "a number": (OAUTH, oauth_message(f"{encoded(b'{}')}.{digits}.AAAA")),
        "claims": (OAUTH, oauth_message(stranger)),
        "a user of SCRAM": (SCRAM, b"n,,n=" + b"a" * HUGE_BYTES + b",r=nonce"),
        "a nonce": (SCRAM, b"n,,n=alice,r=" + b"a" * HUGE_BYTES),
        "attributes": (SCRAM, b"n,,n=alice,r=nonce" + b",x=y" * (HUGE_BYTES // 4)),
        "a password": (PLAIN, plain_message(password="a" * HUGE_BYTES)),
        "a user of PLAIN": (PLAIN, plain_message(user="a" * HUGE_BYTES)),
    }


async def test_huge_login_messages_and_tokens_are_refused_without_delaying_others(broker: SaslBroker) -> None:
    messages = huge_messages()
    assert all(len(message) <= 512 * KIB for _, message in messages.values())
    address = address_of(broker)
    async with bystander(broker.process) as seen, trio.open_nursery() as nursery:
        for mechanism, message in 8 * list(messages.values()):
            nursery.start_soon(login_is_refused, address, mechanism, [message, b"\x01"])
    assert seen.problems(grown_max_mib=GROWN_MAX_MIB) == []


async def test_a_token_above_the_request_size_limit_ends_its_connection(broker: SaslBroker) -> None:
    async with bystander(broker.process) as seen, raw_connections(address_of(broker), 20) as attackers:
        for attacker in attackers:
            await begin(attacker, OAUTH)
            await attacker.send_all(answer_to(oauth_message("a" * (600 * KIB)))[: 64 * KIB])
        for attacker in attackers:
            assert await has_ended(attacker)
    assert seen.problems(grown_max_mib=GROWN_MAX_MIB) == []


# ---- wrong passwords -------------------------------------------------------------------------------------------------

GUESSES_COUNT = 60  # of a user with as many iterations as there may be: 12 ms each, which would be a step that is seen


async def test_many_wrong_passwords_do_not_delay_other_clients(broker: SaslBroker, tmp_path: Path) -> None:
    """They come at once, and the derivations of their keys are not the event loop's."""
    (tmp_path / "password").write_text(PASSWORD)
    from_file = ("--password-file", str(tmp_path / "password"), "--iterations", "16384")
    added = await trio.to_thread.run_sync(
        run, ["users", "add", "bob", *from_file, "--bootstrap", broker.process.bootstrap]
    )
    assert added == 0
    refusals = 0

    async def guess(attacker: trio.SocketStream, number: int) -> None:
        nonlocal refusals
        answer = await send_login(attacker, plain_message(user="bob", password=f"guess {number}"))
        assert answer is not None
        refusals += answer.error_code == SASL_AUTHENTICATION_FAILED

    async with bystander(broker.process) as seen, raw_connections(address_of(broker), GUESSES_COUNT) as attackers:
        for attacker in attackers:
            await begin(attacker, PLAIN)
        async with trio.open_nursery() as nursery:
            for number, attacker in enumerate(attackers):
                nursery.start_soon(guess, attacker, number)
    assert refusals == len(attackers)
    assert seen.problems() == []


# ---- iterations ------------------------------------------------------------------------------------------------------


def scram_final(first: bytes, challenge: bytes, *, iterations: int | None = None) -> bytes:
    """The last message of alice, whose password is right, by as many iterations as she likes."""
    bare = first.decode().split(",", 2)[2]
    nonce, salt, told = (part[2:] for part in challenge.decode().split(","))
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), base64.b64decode(salt), iterations or int(told))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signed = f"{bare},{challenge.decode()},c=biws,r={nonce}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"c=biws,r={nonce},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize("iterations", [None, 1, 4095, 4097])
async def test_a_password_counts_by_the_iterations_of_its_verifier_alone(
    iterations: int | None, broker: SaslBroker
) -> None:
    """None are the verifier's own, by which alice is let in: it is not for another reason that she is refused."""
    first = f"n,,n={ALICE},r=nonce".encode()
    async with raw_connection(address_of(broker)) as stream:
        await begin(stream, SCRAM)
        challenge = await send_login(stream, first)
        assert challenge is not None
        assert bytes(challenge.auth_bytes).endswith(b",i=4096")
        final = scram_final(first, bytes(challenge.auth_bytes), iterations=iterations)
        answer = await send_login(stream, final)
        assert answer is not None
        assert answer.error_code == (NONE if iterations is None else SASL_AUTHENTICATION_FAILED)


async def test_no_user_gets_more_iterations_than_kafka_allows_or_fewer(broker: SaslBroker) -> None:
    """Each login of such a user would cost the broker as much: 2^31 iterations are most of an hour."""
    counts = [1, 4095, 16_385, 2**31 - 1, -1]
    upsertions = [
        ScramCredentialUpsertion(
            name=f"user-{number}-{count}", mechanism=1, iterations=count, salt=bytes(16), salted_password=bytes(32)
        )
        for number in range(400)
        for count in counts
    ]
    async with bystander(broker.process) as seen, connect(broker.process.kafka) as client:
        request = AlterUserScramCredentialsRequest(upsertions=upsertions)
        response = await client.request(request, AlterUserScramCredentialsResponse)
    assert {each.error_code for each in response.results} == {UNACCEPTABLE_CREDENTIAL}
    assert len(response.results) == len(upsertions)
    assert seen.problems() == []


# ---- downgrades ------------------------------------------------------------------------------------------------------

HANDSHAKE_FAILURE, PROTOCOL_VERSION = 40, 70  # alerts; OpenSSL knows no SSL 3.0


def client_hello(version: int) -> bytes:
    """A ClientHello of TLS 1.0 (0x301), 1.1 (0x302) or SSL 3.0 (0x300), with the ciphers that these had."""
    ciphers = struct.pack(">6H", 0xC009, 0xC00A, 0xC013, 0xC014, 0x002F, 0x0035)
    curves = struct.pack(">HHHH", 10, 4, 2, 23)
    body = struct.pack(">H32sBH", version, bytes(32), 0, len(ciphers)) + ciphers + b"\x01\x00"
    body += struct.pack(">H", len(curves)) + curves
    handshake = b"\x01" + len(body).to_bytes(3) + body
    return b"\x16\x03\x01" + struct.pack(">H", len(handshake)) + handshake


@pytest.mark.parametrize("version", [0x300, 0x301, 0x302])
@pytest.mark.parametrize("protocol", [SecurityProtocol.SSL, SECURED])
async def test_versions_of_tls_that_are_too_old_are_refused(
    protocol: SecurityProtocol, version: int, broker: SaslBroker
) -> None:
    async with raw_connection(address_of(broker, protocol)) as stream:
        await stream.send_all(client_hello(version))
        with trio.fail_after(10):
            alert = bytes(await stream.receive_some(100))
            assert alert[0] == 21, alert
            assert alert[-1] == (HANDSHAKE_FAILURE if version == 0x300 else PROTOCOL_VERSION), alert
            assert await stream.receive_some(100) == b""


@pytest.mark.parametrize("protocol", [SecurityProtocol.SSL, SECURED])
async def test_a_plaintext_login_on_a_tls_listener_gets_no_answer(
    protocol: SecurityProtocol, broker: SaslBroker
) -> None:
    async with raw_connection(address_of(broker, protocol)) as stream:
        await stream.send_all(begun_login("PLAIN") + answer_to(plain_message()))
        with trio.fail_after(10):
            said = b""
            while received := await stream.receive_some(100):
                said += received
        assert said[:1] in (b"", b"\x15")  # an alert of TLS, and nothing of Kafka's


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", "ANONYMOUS", "EXTERNAL", "GSSAPI", ""])
async def test_mechanisms_that_are_weaker_or_need_no_password(mechanism: str, broker: SaslBroker) -> None:
    async with raw_connection(address_of(broker)) as stream:
        await stream.send_all(begun_login(mechanism))
        answer = await next_answer(stream)
        assert answer is not None
        assert codec.decode(SaslHandshakeResponse, 1, answer[4:]).error_code == UNSUPPORTED_SASL_MECHANISM
        assert await has_ended(stream)


async def test_sasl_handshake_version_0_is_refused(broker: SaslBroker) -> None:
    async with raw_connection(address_of(broker)) as stream:
        await stream.send_all(begun_login("PLAIN", version=0))
        answer = await next_answer(stream)
        assert answer is not None
        assert codec.decode(SaslHandshakeResponse, 0, answer[4:]).error_code == UNSUPPORTED_VERSION
        assert await has_ended(stream)


async def test_a_second_login_as_another_user_is_refused(broker: SaslBroker) -> None:
    """Sessions last as long as connections here, so there is nothing to renew."""
    address = address_of(broker)
    stream = await trio.open_tcp_stream(address.host, address.port)
    connection = await Connection.over(stream, address)
    sasl = ClientSasl(mechanism=SCRAM, username=ALICE, password=PASSWORD)
    await connection.authenticate(sasl)
    request = SaslAuthenticateRequest(auth_bytes=plain_message(user="admin", password="guess"))
    refused = await connection.request(request, SaslAuthenticateResponse)
    assert refused.error_code == ILLEGAL_SASL_STATE
    await connection.request(MetadataRequest(topics=[]), MetadataResponse)
    await connection.aclose()


# ---- channels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["p=tls-unique", "p=tls-server-end-point", "p=tls-exporter"])
async def test_scram_with_channel_binding_is_refused(flag: str, broker: SaslBroker) -> None:
    await login_is_refused(address_of(broker), SCRAM, [f"{flag},,n={ALICE},r=nonce".encode()])


async def test_a_changed_channel_binding_flag_makes_the_login_fail(broker: SaslBroker) -> None:
    """The flag that the client sent is in its last message, and signed by the password."""
    client = scram_client(SCRAM)
    async with raw_connection(address_of(broker)) as stream:
        await begin(stream, SCRAM)
        changed = client.get_client_first().replace("n,,", "y,,", 1)
        challenge = await send_login(stream, changed.encode())
        assert challenge is not None
        client.set_server_first(bytes(challenge.auth_bytes).decode())
        answer = await send_login(stream, client.get_client_final().encode())
        assert answer is not None
        assert answer.error_code == SASL_AUTHENTICATION_FAILED


# ---- replay ----------------------------------------------------------------------------------------------------------


async def test_replayed_login_messages_are_refused(broker: SaslBroker) -> None:
    client, address = scram_client(SCRAM), address_of(broker)
    first = client.get_client_first().encode()
    async with raw_connection(address) as stream:
        await begin(stream, SCRAM)
        challenge = await send_login(stream, first)
        assert challenge is not None
        client.set_server_first(bytes(challenge.auth_bytes).decode())
        final = client.get_client_final().encode()
        granted = await send_login(stream, final)
        assert granted is not None
        assert granted.error_code == NONE
        again = await send_login(stream, final)
        assert again is not None
        assert again.error_code == ILLEGAL_SASL_STATE
    async with bystander(broker.process) as seen, trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(login_is_refused, address, SCRAM, [first, final])
    assert seen.problems() == []


@attrs.define(eq=False)
class Recorded(trio.abc.Stream):
    """Keeps what a client sends."""

    stream: trio.SocketStream
    sent: bytearray = attrs.field(factory=bytearray)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self.stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self.stream.aclose()


async def test_a_connection_over_tls_that_was_recorded_writes_nothing_again(broker: SaslBroker) -> None:
    """Its login, its Produce, all of it: each connection has keys of its own, and there is no data before them."""
    address = address_of(broker, SECURED)
    context = broker.tls.certificate.client_context(broker.ca_file)
    batch = memoryview(build_batch([Record(value=b"once")]))
    async with connect(broker.process.kafka) as client:
        await Producer(client=client, topic=TOPIC).send([Record(key=None, value=b"ours", timestamp_ms=1)], partition=0)
        recorded = Recorded(await trio.open_tcp_stream(address.host, address.port))
        connection = await Connection.over(
            trio.SSLStream(recorded, context, server_hostname="localhost"), address, "recorded"
        )
        await connection.authenticate(ClientSasl(mechanism=PLAIN, username=ALICE, password=PASSWORD))
        data = [TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])]
        call = connection.call(ProduceRequest, ProduceResponse, version=9)
        body = codec.encode(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data), 9)
        answer = await (await connection.send_encoded(call, body)).wait()
        assert answer.responses[0].partition_responses[0].error_code == NONE
        await connection.aclose()
        written = (await list_offsets(client, TOPIC, {0: LATEST}))[0]
        async with bystander(broker.process) as seen:
            for _ in range(5):
                async with raw_connection(address) as stream:
                    await stream.send_all(recorded.sent)
                    with trio.fail_after(10):
                        while await stream.receive_some(64 * KIB):
                            pass
        assert (await list_offsets(client, TOPIC, {0: LATEST}))[0] == written
    assert seen.problems() == []
