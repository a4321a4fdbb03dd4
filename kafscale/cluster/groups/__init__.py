"""The group coordinator. Entered by `coordinator.GroupCoordinator`.

group        one group: the classic rebalance protocol as a synchronous state machine
generation   what its members run together and are told; `join_time` is how long a rebalance waits for them
members      who is in it; `events` goes in and comes out; `subscription` is what a member wants
offsets      what it has committed; `records` is how that, and the group, is stored
state_bytes, settings   bounds
consumer   groups of Kafka 4 (KIP-848), a room of its own
"""
