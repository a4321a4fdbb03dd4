"""The transaction coordinator. Entered by `coordinators.TransactionCoordinators`, which has one for each partition.

states, values      Kafka's states of a transaction, and the records of `__transaction_state` and markers as values
transaction         one transactional id: every step that it can take, as a function from one value to the next
requests, outcome   what goes in, and what comes out: a reply, and what is to be written before it may be sent
verdicts            whether a producer may do what it asks for
ledger              what is known of one partition's ids, and how much of it is durable
coordinator         one partition of `__transaction_state`: what comes of each request
coordinators        those that are led here, and those that are being loaded
questions, markers  the answers of Describe and List; what the answer to a WriteTxnMarkers means
timers, settings    when something is due; bounds
versions            which error codes and which protocol a request's version stands for

Everything here is synchronous and knows no clock, no disk and no socket. A call decides at once, and the next one
already sees what it has decided; what it returns says what is to be written, as one group in this order. The caller
hands the group to the write-ahead log without waiting in between, and sends the reply once it is durable. So whatever
a crash leaves is the outcome of the first so many decisions, of which the last one may be cut short within its group;
the restored coordinator finishes that.
"""
