"""Attacks on a listener with SASL by who has not logged in, with a well-behaved client of the same broker beside them.

Before a login nothing but ApiVersions and SASL is looked at, in small frames and for a short time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import trio

from kafscale.cli.main import run
from kafscale.client.client import connect
from kafscale.client.consumer import LATEST, list_offsets
from kafscale.client.producer import Producer
from kafscale.config import Address, SaslMechanism
from kafscale.login.security import client_security
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, TopicProduceData
from kafscale.wire.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from kafscale.wire.records import Record, build_batch
from tests.devtools.processes import timed_loop
from tests.devtools.processes.process import BrokerProcess, broker_process
from tests.devtools.processes.sasl import ALICE, PASSWORD, plain_message, scram_client
from tests.hostile.hostile import (
    announced_frame,
    bystander,
    next_answer,
    raw_connection,
    raw_connections,
    request_bytes,
)

MIB = 1 << 20
PRODUCE, SASL_HANDSHAKE, SASL_AUTHENTICATE = 0, 17, 36
SCRAM = SaslMechanism.SCRAM_SHA_256
LOGIN_SECONDS = 3
GROWN_MAX_MIB = 100
TOPIC = "not-theirs"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that knows alice; `further_listeners` is the one with SASL."""
    mechanisms = [option for each in (SCRAM, SaslMechanism.PLAIN) for option in ("--sasl-mechanisms", each.value)]
    options = (
        "--listen",
        "SASL_PLAINTEXT=127.0.0.1:0",
        *timed_loop.fixed(sasl_authentication_timeout_seconds=LOGIN_SECONDS),
    )
    password_file = tmp_path_factory.mktemp("sasl") / "password"
    password_file.write_text(PASSWORD)
    with broker_process(*options, *mechanisms, program=timed_loop.PROGRAM) as running:
        from_file = ("--password-file", str(password_file), "--iterations", "4096")
        assert run(["users", "add", ALICE, *from_file, "--bootstrap", running.bootstrap]) == 0
        yield running
        assert running.returncode is None, running.log


def _address(broker: BrokerProcess) -> Address:
    return Address.parse(broker.further_listeners[0])


async def _good_client(broker: BrokerProcess) -> None:
    """Logs in, and asks for something."""
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": SCRAM.value,
        "sasl.username": ALICE,
        "sasl.password": PASSWORD,
    }
    with trio.fail_after(30):
        async with connect(_address(broker), security=client_security(properties)) as client:
            await client.metadata([])


async def _all_end(streams: Sequence[trio.abc.ReceiveStream], within_seconds: float) -> None:
    """Whatever they are answered before."""
    with trio.fail_after(within_seconds):
        for stream in streams:
            while await next_answer(stream) is not None:
                pass


def _begun_login(mechanism: SaslMechanism = SaslMechanism.PLAIN) -> bytes:
    return request_bytes(SaslHandshakeRequest(mechanism=mechanism.value), 1)


def _answer_to(data: bytes) -> bytes:
    return request_bytes(SaslAuthenticateRequest(auth_bytes=data), 2)


async def test_large_frames_announced_before_a_login_take_no_memory(broker: BrokerProcess) -> None:
    """Whatever it says that it is: a frame above 512 KiB ends its connection."""
    async with bystander(broker) as seen, raw_connections(_address(broker), 150) as attackers:
        for number, attacker in enumerate(attackers):
            api_key = (PRODUCE, SASL_HANDSHAKE, SASL_AUTHENTICATE)[number % 3]
            await attacker.send_all(announced_frame(90 * MIB, api_key=api_key))
        await _all_end(attackers, LOGIN_SECONDS - 0.5)
    assert seen.problems(grown_max_mib=GROWN_MAX_MIB) == []


@pytest.mark.parametrize("before", ["nothing", "a handshake", "a wrong password"])
async def test_a_produce_that_is_sent_along_with_a_login_is_not_taken(before: str, broker: BrokerProcess) -> None:
    """Neither by the general way nor by the short way: the one gate is before both."""
    async with connect(broker.kafka) as client:
        await Producer(client=client, topic=TOPIC).send([Record(key=None, value=b"ours", timestamp_ms=1)], partition=0)
        written = (await list_offsets(client, TOPIC, {0: LATEST}))[0]
        batch = memoryview(build_batch([Record(value=b"theirs")]))
        data = [TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])]
        produce = request_bytes(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data), 9)
        login = {
            "nothing": [],
            "a handshake": [_begun_login()],
            "a wrong password": [_begun_login(), _answer_to(plain_message(password="wrong"))],
        }[before]
        async with raw_connection(_address(broker)) as attacker:
            await attacker.send_all(b"".join([*login, produce, produce, produce]))
            answers = 0
            with trio.fail_after(10):
                while await next_answer(attacker) is not None:
                    answers += 1
        assert answers <= len(login)
        assert (await list_offsets(client, TOPIC, {0: LATEST}))[0] == written


async def test_300_unfinished_logins_do_not_keep_a_client_out(broker: BrokerProcess) -> None:
    """Each ends by its deadline, however it passes the time; a good client logs in meanwhile."""
    first = scram_client(SCRAM).get_client_first().encode()
    half = _begun_login(SCRAM) + _answer_to(first)
    async with bystander(broker) as seen, raw_connections(_address(broker), 300) as attackers:
        async with trio.open_nursery() as nursery:
            for attacker in attackers[:20]:
                nursery.start_soon(_send_slowly, attacker, half)
            for attacker in attackers[20:]:
                await attacker.send_all(half)
            await _good_client(broker)
            await _all_end(attackers, 10 * LOGIN_SECONDS)
            nursery.cancel_scope.cancel()
    assert seen.problems(grown_max_mib=GROWN_MAX_MIB) == []


async def _send_slowly(stream: trio.SocketStream, data: bytes) -> None:
    """A byte at a time, which is never enough for a request within `LOGIN_SECONDS`."""
    try:
        for position in range(len(data)):
            await stream.send_all(data[position : position + 1])
            await trio.sleep(LOGIN_SECONDS / 10)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return
