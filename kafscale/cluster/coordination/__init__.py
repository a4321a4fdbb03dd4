"""Coordinators at work: what their state machines decide is written to internal partitions, and read back from them.

    transactions    asks the coordinator of a transactional id, writes what it decides, and answers when that is durable
    offset_commits  offsets that a transaction commits, in `__consumer_offsets`
    sending         markers that could not be written together with the decision, until each is
    elsewhere       what other brokers are asked: to enrol partitions, to write markers, what they know
    enrolling       partitions that are led here join a transaction, wherever that is coordinated
    hanging         transactions in partitions that no coordinator knows of
    searching       looks for those beside other brokers, whose coordinators it asks
    group_topics    has groups follow the registry of topics
    state_records   the records of `__transaction_state` as the coordinator's values, and back

Entered by `Transactions` and `TransactionalOffsets`, which the handlers ask. What is decided, and nothing else, is in
`kafscale.cluster.transactions`; where it is kept, in `kafscale.cluster.internal`.
"""

from kafscale.cluster.coordination.offset_commits import TransactionalOffsets
from kafscale.cluster.coordination.transactions import Transactions

__all__ = ["TransactionalOffsets", "Transactions"]
