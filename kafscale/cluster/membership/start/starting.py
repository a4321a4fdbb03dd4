"""A broker's start: alone, or as one of several that share the bucket."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from kafscale.cluster.membership.node import advertised_endpoints
from kafscale.cluster.membership.peers.peer_connections import Connect
from kafscale.cluster.membership.start.claim import SharedBucket
from kafscale.cluster.membership.start.joining import join
from kafscale.cluster.membership.start.member import ClusterMember
from kafscale.cluster.membership.start.takeover import take_lead
from kafscale.cluster.metadata.base import LocalMetadataStore
from kafscale.config import Settings
from kafscale.store.opening.probe import startup_errors
from kafscale.store.opening.views import StoreViews

__all__ = ["ClusterMember", "start_leading"]


async def start_leading(
    settings: Settings, views: StoreViews, local: LocalMetadataStore, ports: Mapping[str, int], connect: Connect | None
) -> ClusterMember:
    """Claim the bucket, or join its brokers: also without being told to where several share it already.

    `ports` are the bound ports by listener.

    Raises StartupError, DamagedObject, Fenced, StoreError, StorageFailed.
    """
    endpoints = advertised_endpoints(settings, ports)
    with startup_errors():
        if not settings.several_brokers:
            with suppress(SharedBucket):
                return await take_lead(settings, views, local, endpoints, replaces_others=False)
        return await join(settings, views, local, endpoints, connect)
