"""Acquires and releases partitions as their placements say, and reads those that other brokers lead."""
