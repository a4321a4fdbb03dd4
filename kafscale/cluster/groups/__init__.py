"""The group coordinator. Entered by `coordinator.GroupCoordinator`.

group        one group: the classic rebalance protocol as a synchronous state machine
generation   what its members run together and are told; `join_time` is how long a rebalance waits for them
members      who is in it; `events` goes in and comes out; `subscription` is what a member wants
offsets      what it has committed; `records` is how that, and the group, is stored
log_records  both as records of `__consumer_offsets`; `loading` is what the records of a partition say together, and
             `led_partitions` whose groups are coordinated here
state_bytes, settings   bounds
consumer   groups of Kafka 4 (KIP-848), a room of its own
"""
