"""Shared parts of all handlers. Nothing here knows a handler.

calls             a request's header, its client, and a row of the table of APIs
services          the components that handlers work with
partitions        the partition that a request names, or its leader; brokers that a client can reach
coordinators      tells whether this broker coordinates a group
access            rights of clients, and the log of refusals
operations        the rights that each API needs
refusals          refuses a request before its handler
authentication    the slow part of a login by SASL
quotas            rates of clients
gate              tells whether a Produce is allowed
record_checks     the check of records in batches, in bounded steps
fetch_sessions    partitions that a Fetch omits because its client knows them (KIP-227)
"""
