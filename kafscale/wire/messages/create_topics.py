"""CreateTopics (key 19, versions 2 to 7): new topics.

Version 5 reports the configs that they got, 7 their ids.
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class CreatableReplicaAssignment:
    partition_index: int = wire("int32")
    broker_ids: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class CreatableTopicConfig:
    name: str = wire("string")
    value: str | None = wire("string", default=None)


@attrs.define(kw_only=True)
class CreatableTopic:
    name: str = wire("string")
    num_partitions: int = wire("int32")  # -1: the broker's default
    replication_factor: int = wire("int16")  # -1: the broker's default
    # empty: the broker decides
    assignments: list[CreatableReplicaAssignment] = wire(Array(CreatableReplicaAssignment), factory=list)
    configs: list[CreatableTopicConfig] = wire(Array(CreatableTopicConfig), factory=list)


@attrs.define(kw_only=True)
class CreateTopicsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 19, 2, 7, 5

    topics: list[CreatableTopic] = wire(Array(CreatableTopic), factory=list)
    timeout_ms: int = wire("int32", default=60000)
    validate_only: bool = wire("bool", default=False)


@attrs.define(kw_only=True)
class CreatableTopicConfigs:
    name: str = wire("string")
    value: str | None = wire("string", default=None)
    read_only: bool = wire("bool", default=False)
    config_source: int = wire("int8", default=-1)  # as in DescribeConfigs; -1: unknown
    is_sensitive: bool = wire("bool", default=False)


@attrs.define(kw_only=True)
class CreatableTopicResult:
    name: str = wire("string")
    topic_id: bytes = wire("uuid", since=7, default=bytes(16))
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    topic_config_error_code: int = wire("int16", since=5, tag=0, default=0)
    num_partitions: int = wire("int32", since=5, default=-1)
    replication_factor: int = wire("int16", since=5, default=-1)
    # null when the caller may not describe them, see `topic_config_error_code`
    configs: list[CreatableTopicConfigs] | None = wire(Array(CreatableTopicConfigs), since=5, factory=list)


@attrs.define(kw_only=True)
class CreateTopicsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 19, 2, 7, 5

    throttle_time_ms: int = wire("int32", default=0)
    topics: list[CreatableTopicResult] = wire(Array(CreatableTopicResult), factory=list)
