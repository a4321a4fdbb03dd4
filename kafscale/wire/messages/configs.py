"""Messages about configs and client quotas."""

from __future__ import annotations

from kafscale.wire.schema import Array, Message, Struct, wire


class DescribeConfigsResource(Struct):
    resource_type: int = wire("int8")  # 2 topic, 4 broker, 8 broker logger
    resource_name: str = wire("string")
    configuration_keys: list[str] | None = wire(Array("string"))  # null: all of them


class DescribeConfigsRequest(Message, key=32, versions=(1, 4), flexible=4):
    """DescribeConfigs: the configs of topics and brokers, with their sources."""

    resources: list[DescribeConfigsResource] = wire(Array(DescribeConfigsResource), factory=list)
    include_synonyms: bool = wire("bool", default=False)
    include_documentation: bool = wire("bool", since=3, default=False)


class DescribeConfigsSynonym(Struct):
    name: str = wire("string")
    value: str | None = wire("string", default=None)
    source: int = wire("int8")


class DescribeConfigsResourceResult(Struct):
    name: str = wire("string")
    value: str | None = wire("string", default=None)
    read_only: bool = wire("bool", default=False)
    # 1 topic, 2 dynamic broker, 3 dynamic default, 4 static broker, 5 default
    config_source: int = wire("int8", default=-1)
    is_sensitive: bool = wire("bool", default=False)
    synonyms: list[DescribeConfigsSynonym] = wire(Array(DescribeConfigsSynonym), factory=list)
    # 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password
    config_type: int = wire("int8", since=3, default=0)
    documentation: str | None = wire("string", since=3, default=None)


class DescribeConfigsResult(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    configs: list[DescribeConfigsResourceResult] = wire(Array(DescribeConfigsResourceResult), factory=list)


class DescribeConfigsResponse(Message, answers=DescribeConfigsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    results: list[DescribeConfigsResult] = wire(Array(DescribeConfigsResult), factory=list)


class AlterableConfig(Struct):
    name: str = wire("string")
    value: str | None = wire("string", default=None)


class AlterConfigsResource(Struct):
    resource_type: int = wire("int8")  # 2 topic, 4 broker, 8 broker logger
    resource_name: str = wire("string")
    configs: list[AlterableConfig] = wire(Array(AlterableConfig), factory=list)


class AlterConfigsRequest(Message, key=33, versions=(0, 2), flexible=2):
    """AlterConfigs: replace all configs of a resource; the rest fall back to defaults."""

    resources: list[AlterConfigsResource] = wire(Array(AlterConfigsResource), factory=list)
    validate_only: bool = wire("bool", default=False)


class AlterConfigsResourceResponse(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    resource_type: int = wire("int8")
    resource_name: str = wire("string")


class AlterConfigsResponse(Message, answers=AlterConfigsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    responses: list[AlterConfigsResourceResponse] = wire(Array(AlterConfigsResourceResponse), factory=list)


class IncrementalAlterableConfig(Struct):
    name: str = wire("string")
    config_operation: int = wire("int8")  # 0 set, 1 delete, 2 append, 3 subtract
    value: str | None = wire("string", default=None)


class IncrementalAlterConfigsResource(Struct):
    resource_type: int = wire("int8")  # 2 topic, 4 broker, 8 broker logger
    resource_name: str = wire("string")
    configs: list[IncrementalAlterableConfig] = wire(Array(IncrementalAlterableConfig), factory=list)


class IncrementalAlterConfigsRequest(Message, key=44, versions=(0, 1), flexible=1):
    """IncrementalAlterConfigs: change single configs (KIP-339)."""

    resources: list[IncrementalAlterConfigsResource] = wire(Array(IncrementalAlterConfigsResource), factory=list)
    validate_only: bool = wire("bool", default=False)


class IncrementalAlterConfigsResponse(Message, answers=IncrementalAlterConfigsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    responses: list[AlterConfigsResourceResponse] = wire(Array(AlterConfigsResourceResponse), factory=list)


class ListConfigResourcesRequest(Message, key=74, versions=(0, 1), flexible=0):
    """ListConfigResources: the resources that have configs (KIP-1142); version 0: client metrics only."""

    resource_types: list[int] = wire(Array("int8"), since=1, factory=list)  # empty: all


class ListedConfigResource(Struct):
    resource_name: str = wire("string")
    resource_type: int = wire("int8", since=1, default=16)  # 16: client metrics


class ListConfigResourcesResponse(Message, answers=ListConfigResourcesRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    config_resources: list[ListedConfigResource] = wire(Array(ListedConfigResource), factory=list)


class DescribeClientQuotasComponent(Struct):
    entity_type: str = wire("string")
    match_type: int = wire("int8")  # 0 this name, 1 the default, 2 any that has a name or is the default
    match: str | None = wire("string", default=None)


class DescribeClientQuotasRequest(Message, key=48, versions=(0, 1), flexible=1):
    """DescribeClientQuotas: the quotas of clients and users (KIP-546)."""

    components: list[DescribeClientQuotasComponent] = wire(Array(DescribeClientQuotasComponent), factory=list)
    strict: bool = wire("bool", default=False)


class ClientQuotasEntity(Struct):
    entity_type: str = wire("string")
    entity_name: str | None = wire("string", default=None)  # None is the default


class DescribeClientQuotasValue(Struct):
    key: str = wire("string")
    value: float = wire("float64")


class DescribeClientQuotasEntry(Struct):
    entity: list[ClientQuotasEntity] = wire(Array(ClientQuotasEntity), factory=list)
    values: list[DescribeClientQuotasValue] = wire(Array(DescribeClientQuotasValue), factory=list)


class DescribeClientQuotasResponse(Message, answers=DescribeClientQuotasRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    entries: list[DescribeClientQuotasEntry] | None = wire(Array(DescribeClientQuotasEntry), default=None)


class AlterClientQuotasOp(Struct):
    key: str = wire("string")
    value: float = wire("float64", default=0.0)
    remove: bool = wire("bool", default=False)


class AlterClientQuotasEntry(Struct):
    entity: list[ClientQuotasEntity] = wire(Array(ClientQuotasEntity), factory=list)
    ops: list[AlterClientQuotasOp] = wire(Array(AlterClientQuotasOp), factory=list)


class AlterClientQuotasRequest(Message, key=49, versions=(0, 1), flexible=1):
    """AlterClientQuotas: set and remove quotas of clients and users (KIP-546)."""

    entries: list[AlterClientQuotasEntry] = wire(Array(AlterClientQuotasEntry), factory=list)
    validate_only: bool = wire("bool", default=False)


class AlterClientQuotasResult(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    entity: list[ClientQuotasEntity] = wire(Array(ClientQuotasEntity), factory=list)


class AlterClientQuotasResponse(Message, answers=AlterClientQuotasRequest):
    throttle_time_ms: int = wire("int32", default=0)
    entries: list[AlterClientQuotasResult] = wire(Array(AlterClientQuotasResult), factory=list)
