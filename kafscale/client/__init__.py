"""A small Kafka client on trio and the project's own codec: for the command line, tests and benchmarks.

    connection.py   one connection: negotiated versions, pipelined requests, replies in order
    client.py       finds leaders and coordinators, keeps a connection to each broker
    producer.py     records to batches to partitions
    consumer.py     positions, fetching, records
    isolation.py    what read_committed leaves out of what was fetched
    offsets.py      offsets by time, and the ends of a log
    admin.py        topics and their configs
    groups.py       consumer groups and their offsets
    transactions.py transactional ids and their transactions
    users.py        users and their passwords
    authenticating.py   SASL, by the steps of `kafscale.login`
    acls.py         access control lists

It speaks to any Kafka broker, and needs nothing of KafScale's. Imports `login`, `wire`, `security`, `config`,
`errors` and trio only. A task that waits for a reply reads it itself, so there is no background task and no nursery to
keep.
"""

from __future__ import annotations

from kafscale.client.client import Client, connect
from kafscale.client.connection import Call, Connection, Reply, open_connection
from kafscale.client.consumer import Consumed, Consumer
from kafscale.client.isolation import IsolationLevel
from kafscale.client.producer import Producer
from kafscale.login.security import ClientSecurity, client_security

__all__ = [
    "Call",
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
