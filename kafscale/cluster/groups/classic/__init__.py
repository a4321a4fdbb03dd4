"""One group of the classic rebalance protocol, as a synchronous state machine. Entered by `group.ClassicGroup`."""
