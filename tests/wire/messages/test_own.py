"""Fields of our own: they come back as they were sent, and whoever does not know them reads Kafka's message."""

from __future__ import annotations

import attrs
import pytest

from kafscale.wire.codec import decode, encode
from kafscale.wire.messages.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    OwnHeartbeatRequest,
    OwnHeartbeatResponse,
)
from kafscale.wire.messages.replicas import (
    BalanceRequest,
    BalanceResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kafscale.wire.schema import fields_of
from tests.wire.wire_messages import some_messages, versions_of

MESSAGES = [
    (OwnHeartbeatRequest, BrokerHeartbeatRequest),
    (OwnHeartbeatResponse, BrokerHeartbeatResponse),
    (BalanceRequest, ListPartitionReassignmentsRequest),
    (BalanceResponse, ListPartitionReassignmentsResponse),
]


@pytest.mark.parametrize(("ours", "kafkas"), MESSAGES)
def test_kafkas_message_classes_skip_our_additional_fields(ours: type, kafkas: type) -> None:
    own = {each.name for each in fields_of(ours)} - {each.name for each in fields_of(kafkas)}
    assert own
    for version in versions_of(ours):
        for message in some_messages(ours, version, 20):
            data = b"".join(encode(message, version))
            assert decode(ours, version, data) == message
            shared = {name: value for name, value in attrs.asdict(message, recurse=False).items() if name not in own}
            assert decode(kafkas, version, data) == kafkas(**shared)
            plain = ours(**shared)
            assert b"".join(encode(plain, version)) == b"".join(encode(kafkas(**shared), version))
