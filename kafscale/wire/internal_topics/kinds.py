"""Which records each internal topic has: the classes of their keys by record type.

`__consumer_offsets` has more of them in Kafka: type 0 is of Kafka 0.8, and above 8 are share and Streams groups, but
for the regular expressions of consumer groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kafscale.wire.internal_topics import consumer_groups, groups, offsets, transactions

CONSUMER_OFFSETS: Final[Mapping[int, type]] = MappingProxyType(
    {
        key.RECORD_TYPE: key
        for key in (
            offsets.OffsetCommitKey,
            groups.GroupMetadataKey,
            consumer_groups.ConsumerGroupMetadataKey,
            consumer_groups.ConsumerGroupPartitionMetadataKey,
            consumer_groups.ConsumerGroupMemberMetadataKey,
            consumer_groups.ConsumerGroupTargetAssignmentMetadataKey,
            consumer_groups.ConsumerGroupTargetAssignmentMemberKey,
            consumer_groups.ConsumerGroupCurrentMemberAssignmentKey,
            consumer_groups.ConsumerGroupRegularExpressionKey,
        )
    }
)
TRANSACTION_STATE: Final[Mapping[int, type]] = MappingProxyType(
    {transactions.TransactionLogKey.RECORD_TYPE: transactions.TransactionLogKey}
)
