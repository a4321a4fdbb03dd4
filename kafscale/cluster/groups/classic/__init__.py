"""One group of the classic rebalance protocol, as a synchronous state machine. Entered by `group.ClassicGroup`.

`group` has every event as a method, `members` who is in the group, `generation` the assignment and the join deadline.
"""
