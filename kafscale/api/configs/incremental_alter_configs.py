"""IncrementalAlterConfigs (44, KIP-339): change some configs of topics, groups and brokers, and leave the others.

v0  set, delete, append to a list, remove from a list
v1  flexible

Brokers have the configs that AlterConfigs describes.
"""

from __future__ import annotations

from collections.abc import Callable

from kafscale.api.configs.config_resources import Configs, change_configs
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.registries.config_definitions import ConfigType, split_list
from kafscale.cluster.registries.dynamic_configs import DYNAMIC_CONFIGS
from kafscale.cluster.registries.topic_configs import TOPIC_CONFIGS
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_CONFIG, INVALID_REQUEST
from kafscale.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from kafscale.wire.schema import STRING_MAX_BYTES

SET, DELETE, APPEND, SUBTRACT = range(4)


async def handle(
    services: Services, call: Call, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    answers = await change_configs(services, call, request.resources, _plan, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(responses=answers)


def _plan(resource: IncrementalAlterConfigsResource) -> Callable[[Configs], Configs]:
    nulls = [config.name for config in resource.configs if config.value is None and config.config_operation != DELETE]
    if nulls:
        raise KafkaError(INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    for config in resource.configs:
        if config.config_operation not in (SET, DELETE, APPEND, SUBTRACT):
            raise KafkaError(INVALID_REQUEST, f"Unknown operations type {config.config_operation}")

    def change(old: Configs) -> Configs:
        new = dict(old)
        for config in resource.configs:
            _apply(new, config)
        return new

    return change


def _apply(configs: dict[str, str], config: IncrementalAlterableConfig) -> None:
    if config.config_operation == DELETE:
        configs.pop(config.name, None)
        return
    value = config.value or ""
    configs[config.name] = value if config.config_operation == SET else _edit_list(configs, config, value)


def _edit_list(configs: Configs, config: IncrementalAlterableConfig, value: str) -> str:
    """Return a list with the items of `value` added or removed. Raises KafkaError INVALID_CONFIG."""
    definition = TOPIC_CONFIGS.get(config.name) or DYNAMIC_CONFIGS.get(config.name)
    if definition is None or definition.type is not ConfigType.LIST:
        operation = "APPEND" if config.config_operation == APPEND else "SUBTRACT"
        raise KafkaError(INVALID_CONFIG, f"Can't {operation} to key {config.name} because its type is not LIST.")
    current = configs.get(config.name, definition.default) or ""
    items = dict.fromkeys(item for item in split_list(current) if item)
    for item in split_list(value):
        if config.config_operation == SUBTRACT:
            items.pop(item, None)
        else:
            items[item] = None
    edited = ",".join(items)
    if len(edited.encode()) > STRING_MAX_BYTES:
        raise KafkaError(INVALID_CONFIG, f"The list {config.name} would have more than {STRING_MAX_BYTES} bytes.")
    return edited


API = Api(44, "IncrementalAlterConfigs", 0, 1, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, handle)
