"""Shared parts of all handlers, below the rooms of `kafscale.api`. Nothing here knows a handler.

calls             a request's envelope, its client, and one row of the table of APIs
services          the components that handlers work with
partitions        the partition that a request names, or its leader; brokers that a client can reach
coordinators      whether this broker coordinates a group
access            rights of clients, and the log of refusals
operations        the rights that each API asks for
refusals          refuses a request before its handler; an error as the answer to any request
authentication    the slow part of a login by SASL
quotas            rates of clients
gate              whether a Produce is allowed, before its batches are looked at
record_checks     the check of records in batches, in bounded steps
fetch_sessions    partitions that a Fetch leaves out because its client knows them (KIP-227)
"""
