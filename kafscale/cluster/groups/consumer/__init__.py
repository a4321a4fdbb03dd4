"""Consumer groups of Kafka 4 (KIP-848), as a synchronous state machine. Entered by `group.ConsumerGroup`.

The state that outlives the process is a fold of records, by one function for events and for restarts.

    group            one group: every request is a method
    deciding         one event while it is decided: its records and timers
    heartbeats       members of the new protocol: join, report, get partitions
    classic_members  members of the classic protocol in the same group; `migration` changes the group's protocol
    target           the target assignment, and each member's next step towards it
    regexes          subscriptions by regular expression; `viewers` are the clients whose rights bound their results
    state            the fold, with its indexes; `members` are the values in it
"""
