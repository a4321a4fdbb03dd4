"""The transaction coordinator, on the frame of `kafscale.cluster.coordinator`. Entered by `service.TransactionService`.

service             asks the coordinator of an id, writes its decision, and replies when that is durable
coordinator         one partition of `__transaction_state`: a decision for each request (`requests`)
transaction         one transactional id: every step that it can take, as a function from one value to the next
ledger              the ids of one partition, how much of them is durable, and their deadlines
marker_sender       sends markers that could not be written together with the decision, until each is written
remote_coordinators requests to other brokers: to enrol partitions, to write markers, to tell what they know
enrolling           enrols partitions that are led here; `offset_commits` those of `__consumer_offsets`
hanging             aborts transactions that no coordinator knows

The state machine (coordinator, transaction, ledger and their values) is synchronous: it has no clock, disk or socket. A
call decides at once, and the next call sees that decision; its outcome says what is to be written, as one group in this
order. The caller hands the group to the write-ahead log without an await in between, and sends the reply once the group
is durable. So a crash leaves the result of a prefix of the decisions, of which the last one may be cut short within its
group; the restored coordinator finishes that one.
"""
