"""Kafka's messages with tagged fields that are not Kafka's, by which brokers tell each other, and our CLI, more.

    enrolled    ListTransactions: which partitions take part in the transactions of producers
    heartbeat   BrokerHeartbeat: what a broker has released, what has begun there, and what it, and all have to do
    balance     ListPartitionReassignments: what all have to do, and what balance would move

Their tags begin at OWN_TAG, far from Kafka's. Who does not know them passes over them (KIP-482), so whoever asks must
be able to do without.
"""

from typing import Final

OWN_TAG: Final = 10_000
