"""The transaction coordinator, on the frame of `kafscale.cluster.coordinator`. Entered by `service.Transactions`.

service             asks the coordinator of an id, writes what it decides, and replies when that is durable
coordinator         one partition of `__transaction_state`: each request; `coordinators` has those led here
transaction         one transactional id: every step that it can take, as a function from one value to the next
ledger              what is known of one partition's ids, and how much of it is durable
marker_sender       markers that could not be written together with the decision, until each is
remote_coordinators what other brokers are asked: to enrol partitions, to write markers, what they know
enrolling           partitions that are led here join a transaction; `offset_commits` are those of `__consumer_offsets`
hanging             transactions in partitions that no coordinator knows of; `hanging_search` asks other brokers

The state machine (coordinator, transaction, ledger and their values) is synchronous and knows no clock, no disk and no
socket. A call decides at once, and the next one already sees what it has decided; what it returns says what is to be
written, as one group in this order. The caller hands the group to the write-ahead log without waiting in between, and
sends the reply once it is durable. So whatever a crash leaves is the outcome of the first so many decisions, of which
the last one may be cut short within its group; the restored coordinator finishes that.
"""
