"""AlterConfigs (33): replace all configs of topics, groups and brokers. IncrementalAlterConfigs is the one to use.

v0  configs that are not named go back to their defaults
v1  throttled by the client
v2  flexible

A broker, or all brokers (a resource without a name), have the configs that Kafka changes at run time for a whole
cluster: `log.retention.ms`, `message.max.bytes`, `log.cleaner.backoff.ms` and some 60 more. Those without an effect
here are kept and listed. All others are options of the broker's start. Deleting a config that is not set succeeds. With
several brokers, `kafscale.draining` of a broker moves its partitions to the others.
"""

from __future__ import annotations

from collections.abc import Callable

from kafscale.api.configs.config_resources import Configs, change_configs
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_REQUEST
from kafscale.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)


async def handle(services: Services, call: Call, request: AlterConfigsRequest) -> AlterConfigsResponse:
    answers = await change_configs(services, call, request.resources, _plan, validate_only=request.validate_only)
    return AlterConfigsResponse(responses=answers)


def _plan(resource: AlterConfigsResource) -> Callable[[Configs], Configs]:
    nulls = [config.name for config in resource.configs if config.value is None]
    if nulls:
        raise KafkaError(INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    new = {config.name: config.value for config in resource.configs if config.value is not None}
    return lambda _old: new


API = Api(33, "AlterConfigs", 0, 2, AlterConfigsRequest, AlterConfigsResponse, handle)
