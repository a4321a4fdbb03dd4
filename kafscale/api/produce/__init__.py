"""Produce (key 0), versions 0 to 13; 0 to 2 are advertised, as Kafka 4 does, and end the connection when used.

    3  record batches (magic 2) and transactional ids      8  record errors and messages in the response
    5  log start offset in the response                    9  flexible encoding
    7  zstd                                               10  leader hints (KIP-951)
                                                         11  may answer TRANSACTION_ABORTABLE (KIP-890)
                                                         12  enrols partitions in the producer's transaction
                                                         13  topics by id (KIP-516)

The one API that does not run at its turn in the writer: a connection's reader takes each Produce through these steps as
soon as it is read, so that many are in flight to the disk at once.

    begin      ask the gate, validate, copy into chunks. Nothing is decided yet.                           no await
               (Where a request above 64 KiB names many partitions, others run after each 256 of them.)
    complete   only if begin could not finish: check batches that take long, and wait for the pool.
               Only later requests of this connection wait.                                                awaits
    order      check sequences, assign offsets, hand to the journal. The order of these calls is
               the order of the log.                                                                       no await
    wait       in the writer: until every round of the journal that the reply needs is durable.            awaits

`produce` does this for any request. `group` is a shorter way for requests that repeat earlier ones (`patterns`): gate,
checks and order are the same functions (`batches`), in one call. Either way leaves a `Pending` in the connection's
queue. Gate and long checks are `kafscale.api.handling.gate` and `kafscale.api.handling.record_checks`.
"""

from kafscale.api.produce.batches import Pending
from kafscale.api.produce.group import ProduceGroup, ShortWay
from kafscale.api.produce.produce import API, PendingProduce, begin, begin_in_turns

__all__ = ["API", "Pending", "PendingProduce", "ProduceGroup", "ShortWay", "begin", "begin_in_turns"]
