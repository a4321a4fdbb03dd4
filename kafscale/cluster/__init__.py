"""Broker-wide state machines: topics, groups, offsets, producers, metadata. Touches no sockets."""
