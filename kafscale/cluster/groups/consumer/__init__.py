"""Consumer groups of Kafka 4 (KIP-848) as a synchronous state machine. Entered by `group.ConsumerGroup`.

events in, an `events.Outcome` out: a reply, the records to write, the timers to set. No I/O, no clock, no task: the
time is handed in. What outlives the process is a fold of records, by one function for events and for restarts.

group        one group: every event by a method; `describing` is how it is shown
heartbeats   members of the new protocol: join, report, get partitions; `fencing` is how members go
classic      members of the classic protocol in the same group; `migration` is the way there and back
target       who is to have what, by the `assignors`; `reconciling` takes one member there, heartbeat by heartbeat
regexes      subscriptions by regular expression; `viewers` are the clients whose rights bound what those find
state        the fold, with its indexes; `members`, `records`, `topics`, `partitions` are the values in it
settings     bounds and times, by Kafka's names; `sizes` is what things take in memory
"""
