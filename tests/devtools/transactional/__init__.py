"""Transactional clients for the fault suites, and what a broker must not let happen to them.

clients      all of them together, with topics of their own, for a simulation
producer     begins, writes, commits, aborts, gives up, and repeats what it got no answer to
copier       from one topic to another, with the offsets in the transaction
latecomer    markers of earlier epochs, which must be refused
reader       consumers at both isolation levels
seen         what they were told, and whether all of it can be true
in_bucket    whether footers tell of transactions what the batches say
durable      what becomes durable, in order, in each mode
in_log       whether that keeps the rules of transactions: decisions before markers, enrolment before data, and others
"""
