"""Records of Kafka's internal topics, byte for byte as Kafka 4.1 writes them, so that its tools can print them.

`consumer_offsets` and `transaction_state` declare keys and values by `kafscale.wire.schema`; `coding` turns them into
the bytes of records and back. The class of a key says what the record is about, and its `VALUE` is the class for
`decode_value`. A record without a value deletes the value of its key.
"""

from kafscale.wire.internal_topics.coding import decode_key, decode_value, encode_key, encode_value
from kafscale.wire.internal_topics.consumer_offsets import CONSUMER_OFFSETS
from kafscale.wire.internal_topics.transaction_state import TRANSACTION_STATE

__all__ = ["CONSUMER_OFFSETS", "TRANSACTION_STATE", "decode_key", "decode_value", "encode_key", "encode_value"]
