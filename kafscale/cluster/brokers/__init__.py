"""Several brokers on one bucket: which there are, who leads what, and how that changes.

    records     what the metadata holds of it
    state       the same in memory, which follows the metadata
    assignment  what the APIs ask, in the place of that of a broker alone
    placing     pure: who is to lead what is new, and what should move for balance
    placements  changes of rows, those of many partitions in one commit
    leading     acquires and releases partitions, as the rows say
    moving      moves that somebody asks for
    leaving     others lead what a broker leads that is being stopped
    membership  what an operator decides about a broker: that it is drained, or does not come back
    control     what one of the brokers does for all: checkpoints, balance

All of it goes through the metadata, of which each commit is a conditional write (`kafscale.cluster.metadata.shared`).
So two brokers can't both be right about who leads: the second commit finds what the first has changed.
"""
