"""The records of Kafka's internal topics, byte for byte as Kafka 4.1 writes them, so that its tools can print them.

    __consumer_offsets     `offsets`, `groups` (classic groups) and `consumer_groups` (KIP-848)
    __transaction_state    `transactions`

Each module declares keys and values by `kafscale.wire.schema`; `coding` turns them into the bytes of records and back.
Whoever leads a partition of these topics enters by these names: a key that `decode_key` gives says by its class of what
the record tells, and its `VALUE` is the class for `decode_value`. A record without a value takes back what it is about.
"""

from kafscale.wire.internal_topics.coding import decode_key, decode_value, encode_key, encode_value
from kafscale.wire.internal_topics.kinds import CONSUMER_OFFSETS, TRANSACTION_STATE

__all__ = ["CONSUMER_OFFSETS", "TRANSACTION_STATE", "decode_key", "decode_value", "encode_key", "encode_value"]
