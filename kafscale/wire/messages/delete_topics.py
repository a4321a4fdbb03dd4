"""DeleteTopics (key 20, versions 1 to 6): topics to delete, by name, or from version 6 by name or id."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class DeleteTopicState:
    name: str | None = wire("string", default=None)  # null when deleted by id
    topic_id: bytes = wire("uuid", default=bytes(16))


@attrs.define(kw_only=True)
class DeleteTopicsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 20, 1, 6, 4

    topics: list[DeleteTopicState] = wire(Array(DeleteTopicState), since=6, factory=list)
    topic_names: list[str] = wire(Array("string"), until=5, factory=list)
    timeout_ms: int = wire("int32")


@attrs.define(kw_only=True)
class DeletableTopicResult:
    name: str | None = wire("string")  # null for an unknown id
    topic_id: bytes = wire("uuid", since=6, default=bytes(16))
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", since=5, default=None)


@attrs.define(kw_only=True)
class DeleteTopicsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 20, 1, 6, 4

    throttle_time_ms: int = wire("int32", default=0)
    responses: list[DeletableTopicResult] = wire(Array(DeletableTopicResult), factory=list)
