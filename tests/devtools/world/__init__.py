"""Simulated brokers, disks, buckets, networks and clients, driven by a seed on an autojump clock."""
