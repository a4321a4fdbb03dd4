"""Unmodified clients that have quotas: by user, over all of its client ids, and by what they have made."""

import time

import pytest
import trio
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafscale.client.connection import open_connection
from kafscale.config import SecurityProtocol
from kafscale.wire.messages.configs import (
    AlterClientQuotasEntry,
    AlterClientQuotasOp,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    ClientQuotasEntity,
)
from tests.devtools.external.clients import DEADLINE_SECONDS, poll_until
from tests.devtools.processes.sasl import PASSWORD, sasl_broker

POLL_SECONDS = 0.05


@pytest.fixture(scope="module")
def broker():
    with sasl_broker() as running:
        admin = AdminClient({"bootstrap.servers": running.process.bootstrap})
        salted = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        changes = [UserScramCredentialUpsertion(user, salted, PASSWORD.encode()) for user in ("ann", "ben")]
        for future in admin.alter_user_scram_credentials(changes).values():
            future.result(DEADLINE_SECONDS)
        yield running


def set_quota(broker, key, value, **names):
    """Have the broker take over a quota of a user or client id."""
    entity = [ClientQuotasEntity(entity_type=kind, entity_name=name) for kind, name in names.items()]
    entry = AlterClientQuotasEntry(entity=entity, ops=[AlterClientQuotasOp(key=key, value=value)])

    async def alter():
        async with open_connection(broker.process.kafka) as connection:
            response = await connection.request(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse)
            assert [each.error_message for each in response.entries] == [None]

    trio.run(alter)
    broker.process.settle()


def producer_of(broker, user, client_id, told):
    return Producer(
        {
            "bootstrap.servers": broker.bootstrap(SecurityProtocol.SASL_PLAINTEXT),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": PASSWORD,
            "client.id": client_id,
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )


def send(producer, topic, size):
    producer.produce(topic, bytes(size))
    assert producer.flush(DEADLINE_SECONDS) == 0


def test_all_client_ids_of_a_user_have_its_quota_together_and_other_users_do_not(broker, name):
    set_quota(broker, "producer_byte_rate", 10_000, user="ann")
    first, second, others = [], [], []
    ann, another, ben = (
        producer_of(broker, user, client_id, told)
        for user, client_id, told in (("ann", "a", first), ("ann", "b", second), ("ben", "a", others))
    )
    send(ann, name, 500_000)
    poll_until(lambda: first, lambda: ann.poll(POLL_SECONDS), what="the first client is told")
    send(another, name, 10)
    poll_until(lambda: second, lambda: another.poll(POLL_SECONDS), what="the second client is told")
    assert second[0] > 5
    send(ben, name, 500_000)
    ben.poll(POLL_SECONDS)
    assert not others


def test_an_admin_client_that_does_not_know_the_error_waits_for_its_next_request(broker, name):
    """librdkafka asks for CreateTopics 4."""
    set_quota(broker, "controller_mutation_rate", 10, user="ANONYMOUS")
    admin = AdminClient({"bootstrap.servers": broker.process.bootstrap})

    def create(topic, count):
        (future,) = admin.create_topics([NewTopic(topic, count)]).values()
        future.result(DEADLINE_SECONDS)

    began = time.monotonic()
    create(f"{name}-large", 130)  # 110 may come at once: 2 s are missing
    set_quota(broker, "controller_mutation_rate", 1e9, user="ANONYMOUS")
    create(f"{name}-small", 1)
    assert time.monotonic() - began > 1.9
