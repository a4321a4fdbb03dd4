"""Several brokers on one bucket: which there are, who leads what, and how that changes.

    records     what the metadata holds of it
    state       the same in memory, which follows the metadata
    assignment  what the APIs ask, in the place of that of a broker alone
    placing     pure: who is to lead what is new, and what should move for balance
    loads       what brokers have told of what they have to do
    balance     what should move, as far as this broker knows
    placements  changes of rows, those of many partitions in one commit
    leading     acquires and releases partitions, as the rows say
    beginnings  where epochs begin is committed for many brokers together
    moving      moves that somebody asks for
    following   what others lead, read from the bucket for consumers nearby
    leaving     others lead what a broker leads that is being stopped
    membership  what an operator decides about a broker: that it is drained, or does not come back
    disk_room   a broker whose disk is full has others lead what it leads
    liveness    pure: which of the others were heard of lately
    heartbeats  from broker to broker, over `lines`
    lease       whether a broker with a log of its own may acknowledge
    failing_over    what a broker led that is lost is led by others: one commit
    control     what one of the brokers does for all: checkpoints, balance, fail-over

All of it goes through the metadata, of which each commit is a conditional write (`kafscale.cluster.metadata.shared`).
So two brokers can't both be right about who leads: the second commit finds what the first has changed.
"""
