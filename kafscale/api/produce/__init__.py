"""Produce (key 0), versions 0 to 13; 0 to 2 are advertised, as Kafka 4 does, and end the connection when used.

    3  record batches (magic 2) and transactional ids      8  record errors and messages in the response
    5  log start offset in the response                    9  flexible encoding
    7  zstd                                               10  leader hints (KIP-951)
                                                         11  may answer TRANSACTION_ABORTABLE (KIP-890)
                                                         12  enrols partitions in the producer's transaction
                                                         13  topics by id (KIP-516)

Produce does not run at its turn in the writer. A connection's reader takes each Produce through these steps as soon as
it is read, so that many are in flight to the disk at once:

    begin      ask the gate, validate, copy into chunks. Nothing is decided yet.                           no await
               (Other tasks run after each 256 partitions of a request above 64 KiB.)
    complete   only if begin could not finish: check batches that take long, and wait for the pool.
               Only later requests of this connection wait.                                                awaits
    order      check sequences, assign offsets, hand to the journal. The order of these calls is
               the order of the log.                                                                       no await
    wait       in the writer: until every round of the journal that the reply needs is durable.            awaits

`produce` does this for any request: read it first. `short_way` does it for requests that repeat earlier ones, by the
same functions for gate, checks and order (`batches`), in one call. Both leave a `Pending` in the connection's queue.
"""

from kafscale.api.produce.batches import Pending
from kafscale.api.produce.produce import API, PendingProduce, begin, begin_in_turns
from kafscale.api.produce.short_way import ProduceGroup, ShortWay

__all__ = ["API", "Pending", "PendingProduce", "ProduceGroup", "ShortWay", "begin", "begin_in_turns"]
