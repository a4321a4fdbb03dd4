"""This broker as its cluster and its clients know it: id, cluster id, epoch and the addresses it advertises."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import attrs

from kafscale.cluster.metadata.base import MetadataStore, Transaction
from kafscale.cluster.metadata.converter import decode, encode, keeping_others, others_field, random_uuid, uuid_text
from kafscale.config import Settings
from kafscale.errors import PreconditionFailed, StartupError

CLUSTER_ID_KEY = "cluster/id"


@keeping_others
@attrs.frozen
class Endpoint:
    """Advertised address. `others` holds fields of later versions."""

    host: str
    port: int
    others: Mapping[str, object] = others_field()


class ReachedBy(Protocol):
    """A client's connection: the listener, and the address that the client used."""

    listener_name: str
    reached_host: str
    reached_port: int


@attrs.frozen(kw_only=True)
class Node:
    """One broker. `broker_epoch` grows with every start; `rack` is a rack or an availability zone.

    `advertised` has an entry for each listener; None, for one bound to a wildcard address, advertises the address that
    the client reached.
    """

    node_id: int
    cluster_id: str
    broker_epoch: int
    advertised: Mapping[str, Endpoint | None]
    rack: str | None = None

    def endpoint(self, peer: ReachedBy) -> Endpoint:
        """Return the advertised address of the listener that a client used."""
        advertised = self.advertised.get(peer.listener_name)
        return advertised or Endpoint(peer.reached_host, peer.reached_port)


def advertised_endpoints(settings: Settings, ports: Mapping[str, int]) -> Mapping[str, Endpoint | None]:
    """Return the advertised address by listener: as set, else its own (`ports` are bound), unless a wildcard."""
    found: dict[str, Endpoint | None] = {
        listener.name: None
        if listener.is_wildcard
        else Endpoint(listener.host, ports.get(listener.name, listener.port))
        for listener in settings.listeners
    }
    return found | {listener.name: Endpoint(listener.host, listener.port) for listener in settings.advertised_listeners}


def epoch_key(node_id: int) -> str:
    return f"brokers/{node_id}/epoch"


async def register_node(
    store: MetadataStore,
    *,
    node_id: int,
    broker_epoch: int,
    cluster_id: str | None,
    advertised: Mapping[str, Endpoint | None],
    rack: str | None = None,
) -> Node:
    """Record this start, and the cluster's id at the first. Raises StartupError for another cluster's metadata."""
    known_id = await _known_id(store)
    if known_id is None:
        puts = {CLUSTER_ID_KEY: encode(cluster_id or uuid_text(random_uuid()))}
        with suppress(PreconditionFailed):  # then another broker has just made one known
            await store.commit(Transaction(puts=puts, expect={CLUSTER_ID_KEY: 0}, essential=True))
        known_id = await _known_id(store)
        assert known_id is not None, "the id of a cluster is never deleted"
    if cluster_id not in (None, known_id):
        raise StartupError(
            f"the metadata in --data-dir is of cluster {known_id}, not {cluster_id}: give another --data-dir"
        )
    await store.commit(Transaction(puts={epoch_key(node_id): encode(broker_epoch)}, essential=True))
    return Node(node_id=node_id, cluster_id=known_id, broker_epoch=broker_epoch, advertised=advertised, rack=rack)


async def _known_id(store: MetadataStore) -> str | None:
    entry = await store.get(CLUSTER_ID_KEY)
    return None if entry is None else decode(str, entry.value)
