"""The transaction coordinator, on the frame of `kafscale.cluster.coordinator`. Entered by `service.TransactionService`.

The state machine (coordinator, ledger, transaction) is synchronous, without a clock, disk or socket. A call decides at
once, and the next call sees that decision. Its entries are appended as one group without an await in between, and the
reply is sent when they are durable. So a crash leaves a prefix of the decisions, of which the last may be cut short
within its group; the restored coordinator finishes that one.
"""
