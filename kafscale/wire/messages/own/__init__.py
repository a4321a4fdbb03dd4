"""Kafka's messages with tagged fields that are not Kafka's, by which brokers tell each other more than clients.

    enrolled    ListTransactions: which partitions take part in the transactions of producers

Their tags begin at OWN_TAG, far from Kafka's. Who does not know them passes over them (KIP-482), so whoever asks must
be able to do without.
"""

from typing import Final

OWN_TAG: Final = 10_000
