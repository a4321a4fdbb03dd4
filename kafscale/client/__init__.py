"""A small Kafka client on trio and the project's own codec: for the command line, tests and benchmarks.

    connection      one connection: negotiated versions, pipelined requests, replies in order
    client          finds leaders and coordinators, keeps a connection to each broker
    producer        records to batches to partitions
    consumer        positions, fetching, isolation levels, offsets by time
    admin           topics and their configs
    brokers         brokers of a cluster, their partitions, reassignments, elections and balance
    groups          consumer groups, their offsets, and a reader that commits for one
    transactions    transactional ids and their transactions
    access          users, their passwords, and access control lists

It speaks to any Kafka broker. A task that waits for a reply reads it itself, so there is no background task and no
nursery to keep.
"""

from __future__ import annotations

from kafscale.client.client import Client, connect
from kafscale.client.connection import Connection, Reply, open_connection
from kafscale.client.consumer import Consumed, Consumer, IsolationLevel
from kafscale.client.producer import Producer
from kafscale.login.client_protocol import ApiCall
from kafscale.login.security import ClientSecurity, client_security

__all__ = [
    "ApiCall",
    "Client",
    "ClientSecurity",
    "Connection",
    "Consumed",
    "Consumer",
    "IsolationLevel",
    "Producer",
    "Reply",
    "client_security",
    "connect",
    "open_connection",
]
