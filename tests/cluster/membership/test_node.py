from __future__ import annotations

import base64

import attrs
import pytest
import trio

from kafscale.cluster.membership.node import Endpoint, Node, epoch_key, register_node
from kafscale.cluster.metadata.base import Transaction
from kafscale.errors import StartupError
from kafscale.testing.metadata import MemoryMetadataStore


@attrs.frozen
class Reached:
    listener_name: str
    reached_host: str = "10.0.0.7"
    reached_port: int = 9092


async def register(store: MemoryMetadataStore, cluster_id: str | None = None, epoch: int = 0) -> Node:
    return await register_node(store, node_id=0, broker_epoch=epoch, cluster_id=cluster_id, advertised={})


async def test_the_cluster_id_is_made_up_once() -> None:
    store = MemoryMetadataStore()
    first, second = await register(store), await register(store)
    assert first.cluster_id == second.cluster_id
    assert len(base64.urlsafe_b64decode(first.cluster_id + "==")) == 16
    assert len(first.cluster_id) == 22


async def test_brokers_that_start_at_once_make_up_one_cluster_id() -> None:
    """The last one's was kept, and the others went on with their own."""

    @attrs.define(eq=False)
    class Slow(MemoryMetadataStore):
        """The first commit takes effect after everything that the other broker does."""

        is_first: bool = True
        other_is_done: trio.Event = attrs.field(factory=trio.Event)

        async def commit(self, transaction: Transaction) -> int:
            is_first, self.is_first = self.is_first, False
            if is_first:
                await self.other_is_done.wait()
            return await super().commit(transaction)

    store = Slow()
    nodes: list[Node] = []

    async def start() -> None:
        nodes.append(await register(store))
        store.other_is_done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        nursery.start_soon(start)
    assert nodes[0].cluster_id == nodes[1].cluster_id


async def test_the_epoch_that_was_claimed_is_kept() -> None:
    store = MemoryMetadataStore()
    assert (await register(store, epoch=7)).broker_epoch == 7
    entry = await store.get(epoch_key(0))
    assert entry is not None
    assert entry.value == b"7"


async def test_a_given_cluster_id_is_kept_and_must_stay() -> None:
    store = MemoryMetadataStore()
    assert (await register(store, "mine")).cluster_id == "mine"
    assert (await register(store)).cluster_id == "mine"
    with pytest.raises(StartupError, match="of cluster mine, not other"):
        await register(store, "other")


def test_a_client_gets_the_address_of_the_listener_that_received_its_request() -> None:
    advertised = {"INTERNAL": Endpoint("broker", 9094), "EXTERNAL": None}
    node = Node(node_id=1, cluster_id="c", broker_epoch=0, advertised=advertised)
    assert node.endpoint(Reached("INTERNAL")) == Endpoint("broker", 9094)
    assert node.endpoint(Reached("EXTERNAL")) == Endpoint("10.0.0.7", 9092)
