"""Assignors: which member of a group gets which partition. Functions without side effects.

`spec` has the input and output, `uniform` and `range_assignor` the two assignors of Kafka.
"""
