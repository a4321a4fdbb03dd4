"""Refuses or delays a Produce before its batches are looked at: authorization and quotas, for both ways of Produce.

the general way   asks for each request: `topic_refusal` for each of its topics, and `throttle_ms` once
the short way     asks `takes_plain` once for all requests of a read that differ only in partition and records.
                  Any other request goes the general way, which finds the error
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from kafscale.api.handling.access import Access
from kafscale.api.handling.calls import Call
from kafscale.api.handling.quotas import Quotas
from kafscale.cluster.registries.topic_names import is_internal
from kafscale.errors import KafkaError
from kafscale.security.acls import WRITE_TOPIC, WRITE_TRANSACTION
from kafscale.wire.error_codes import (
    INVALID_TOPIC_EXCEPTION,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
from kafscale.wire.messages.records import ProduceRequest, TopicProduceData

NONE_REFUSED: Final[Mapping[int, KafkaError]] = MappingProxyType({})


@attrs.define(eq=False, kw_only=True, repr=False)
class Gate:
    quotas: Quotas
    access: Access = attrs.field(factory=Access)

    def topic_refusal(self, call: Call, request: ProduceRequest, topic: str) -> KafkaError | None:
        access = self.access
        if access.authorizer is not None:
            transactional_id = request.transactional_id
            if transactional_id is not None and not access.allows(call, WRITE_TRANSACTION, transactional_id):
                return KafkaError(TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            if not access.allows(call, WRITE_TOPIC, topic):
                return KafkaError(TOPIC_AUTHORIZATION_FAILED)
        if is_internal(topic):  # only coordinators write there
            return KafkaError(INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}")
        return None

    def refusals(self, call: Call, request: ProduceRequest, topic: TopicProduceData) -> Mapping[int, KafkaError]:
        refusal = self.topic_refusal(call, request, topic.name)
        return NONE_REFUSED if refusal is None else {data.index: refusal for data in topic.partition_data}

    def throttle_ms(self, call: Call, size_bytes: int) -> int:
        quota = self.quotas.producer
        return 0 if quota is None else quota.throttle_ms(call, size_bytes)

    def takes_plain(self, call: Call, request: ProduceRequest, topic: str) -> bool:
        """Tell whether all requests like this one, for any partition, are allowed until the next await, uncounted."""
        quotas = self.quotas
        for quota in (quotas.producer, quotas.request):
            if quota is not None and quota.applies_to(call):
                return False
        return self.topic_refusal(call, request, topic) is None
