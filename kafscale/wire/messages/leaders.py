"""What Produce and Fetch tell about the leader of a partition that is led elsewhere (KIP-951)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import wire


@attrs.define(kw_only=True)
class LeaderIdAndEpoch:
    leader_id: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32", default=-1)


@attrs.define(kw_only=True)
class NodeEndpoint:
    node_id: int = wire("int32")
    host: str = wire("string")
    port: int = wire("int32")
    rack: str | None = wire("string", default=None)
