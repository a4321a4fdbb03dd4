"""A broker's start: alone, or as one of several that share the bucket."""

from __future__ import annotations

from collections.abc import Mapping

from kafscale.cluster.membership.node import Endpoint
from kafscale.cluster.membership.peers.heartbeats import Connect
from kafscale.cluster.membership.start.claim import SharedBucket
from kafscale.cluster.membership.start.joining import join
from kafscale.cluster.membership.start.lead import Lead
from kafscale.cluster.membership.start.takeover import take_lead
from kafscale.cluster.metadata.base import LocalMetadataStore
from kafscale.config import Settings
from kafscale.store.opening.views import StoreViews


async def start_leading(
    settings: Settings,
    views: StoreViews,
    local: LocalMetadataStore,
    endpoints: Mapping[str, Endpoint | None],
    connect: Connect | None,
) -> Lead:
    """Become the one that leads, or one of those that do: also without being told to where several do already.

    Raises StartupError, DamagedObject, Fenced, StoreError, StorageFailed.
    """
    if not settings.several_brokers:
        try:
            return await take_lead(settings, views, local, replaces_others=False)
        except SharedBucket:
            pass
    return await join(settings, views, local, endpoints, connect)
