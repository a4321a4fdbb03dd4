"""The calls of Kafka 4.1's brokers that this broker does not serve, and why: for the protocol reference.

Clients are told of none of them, so that they fall back, or say that the broker does not support them. A test holds
this and the table of APIs together to all that Kafka's brokers serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs


@attrs.frozen
class NotServed:
    """Calls that are left out for the same reason; `names` is by their keys."""

    names: Mapping[int, str]
    reason: str


NOT_SERVED: Sequence[NotServed] = (
    NotServed(
        {
            38: "CreateDelegationToken",
            39: "RenewDelegationToken",
            40: "ExpireDelegationToken",
            41: "DescribeDelegationToken",
        },
        "Users have passwords, or tokens of an identity provider (OAUTHBEARER); the broker gives out none of its own.",
    ),
    NotServed(
        {71: "GetTelemetrySubscriptions", 72: "PushTelemetry"},
        "The broker collects no metrics of clients (KIP-714). Kafka serves these only with a plugin that does.",
    ),
    NotServed(
        {
            76: "ShareGroupHeartbeat",
            77: "ShareGroupDescribe",
            78: "ShareFetch",
            79: "ShareAcknowledge",
            83: "InitializeShareGroupState",
            84: "ReadShareGroupState",
            85: "WriteShareGroupState",
            86: "DeleteShareGroupState",
            87: "ReadShareGroupStateSummary",
            90: "DescribeShareGroupOffsets",
            91: "AlterShareGroupOffsets",
            92: "DeleteShareGroupOffsets",
        },
        "There are no share groups (KIP-932), which are a preview in Kafka 4.1.",
    ),
    NotServed(
        {80: "AddRaftVoter", 81: "RemoveRaftVoter"},
        "There is no quorum to which voters could be added: one broker at a time is the controller.",
    ),
    NotServed(
        {88: "StreamsGroupHeartbeat", 89: "StreamsGroupDescribe"},
        "There are no groups of Streams (KIP-1071), which are early access in Kafka 4.1; Streams uses classic groups.",
    ),
)
