"""The transaction coordinator, on the frame of `kafscale.cluster.coordinator`. Entered by `service.TransactionService`.

service             asks the coordinator of an id, writes its decision, and replies when that is durable
coordinator         one partition of `__transaction_state`: decides each request
ledger              base class of the coordinator: its ids, their decisions and deadlines
transaction         one transactional id: every step is a function from one value to the next
marker_sender       sends markers that are not in the group of the decision, until each is written
remote_coordinators requests to other brokers: enrol partitions, write markers, look for hanging transactions
enrolling           enrols partitions that this broker leads; `offset_commits` those of `__consumer_offsets`
hanging             aborts transactions that no coordinator knows

The state machine (coordinator, ledger, transaction) is synchronous, without a clock, disk or socket. A call decides at
once, and the next call sees that decision. The outcome has the entries to write as one group, in order. The caller
appends the group without an await in between, and replies when it is durable. So a crash leaves a prefix of the
decisions, of which the last may be cut short within its group; the restored coordinator finishes that one.
"""
