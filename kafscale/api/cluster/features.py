"""The features of Kafka 4.1's clusters, and the level at which each is here: what ApiVersions tells (KIP-584).

A level is that of the broker's version and no operator's choice, so each is the only one that is supported. Level 0 is
a feature that is not there; as in Kafka, it is not told.

    metadata.version                    that of Kafka 4.1, whose calls are answered; nothing here is in its formats
    transaction.version                 2, each transaction has an epoch of its own (KIP-890)
    group.version                       1, consumer groups whose assignments the broker makes (KIP-848)
    kraft.version                       0, there is no quorum with voters that could be added (KIP-853)
    eligible.leader.replicas.version    0, whoever leads has all records from the bucket (KIP-966)
    share.version, streams.version      0, there are no such groups (KIP-932, KIP-1071)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafscale.cluster.transactions.transaction import EPOCH_BUMP_VERSION
from kafscale.wire.messages.cluster import FinalizedFeatureKey, SupportedFeatureKey

LEVELS: Final[Mapping[str, int]] = {
    "metadata.version": 27,  # 4.1-IV1
    "transaction.version": EPOCH_BUMP_VERSION,
    "group.version": 1,
    "kraft.version": 0,
    "eligible.leader.replicas.version": 0,
    "share.version": 0,
    "streams.version": 0,
}
_THERE: Final = [(name, level) for name, level in LEVELS.items() if level > 0]

SUPPORTED: Final = [SupportedFeatureKey(name=name, min_version=level, max_version=level) for name, level in _THERE]
FINALIZED: Final = [
    FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level) for name, level in _THERE
]
EPOCH: Final = 0  # of the finalized levels: they do not change while brokers run
