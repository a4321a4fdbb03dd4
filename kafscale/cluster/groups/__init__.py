"""Groups and their committed offsets. Entered by `coordinating.coordinator.GroupCoordinator`.

group        one group: the classic rebalance protocol as a synchronous state machine
generation   what its members run together and are told; `join_time` is how long a rebalance waits for them
members      who is in it; `events` goes in and comes out; `subscription` is what a member wants
offsets      what a group has committed; `records` is how that, and the group, is stored
group_log    writes what is submitted to `__consumer_offsets`
state_bytes, settings   bounds
consumer     groups of Kafka 4 (KIP-848) as a state machine; `hosted` has them do what it decides
logged       groups of both kinds in the log; `coordinating` is above all of these
"""
