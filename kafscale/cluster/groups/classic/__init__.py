"""One group of the classic rebalance protocol, as a synchronous state machine. Entered by `group.Group`.

group        every event by a method, and the timers
members      who is in it; `subscription` reads which topics a member names
generation   the assignment that its members run together; `join_time` is the deadline of a rebalance
"""
