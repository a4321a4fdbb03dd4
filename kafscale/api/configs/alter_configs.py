"""AlterConfigs (33): replace everything that is set on a topic or a group. IncrementalAlterConfigs is the one to use.

v0  what is not named goes back to its default
v1  throttled by the client
v2  flexible

A broker's configs are read-only: they are set where it is started. To set none, or to delete what is never set, is no
error. Beside others there is one that can be set, of any of them, by any of them: `kafscale.draining`, whether it is to
lead nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from kafscale.api.configs.config_resources import Configs, change_configs, outcomes
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_REQUEST
from kafscale.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(services: Services, call: Call, request: AlterConfigsRequest) -> AlterConfigsResponse:
    errors = await change_configs(services, call, request.resources, _plan, validate_only=request.validate_only)
    return AlterConfigsResponse(responses=outcomes(AlterConfigsResourceResponse, request.resources, errors))


def _plan(resource: AlterConfigsResource) -> Callable[[Configs], Configs]:
    nulls = [config.name for config in resource.configs if config.value is None]
    if nulls:
        raise KafkaError(INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    new = {config.name: config.value for config in resource.configs if config.value is not None}
    return lambda _old: new


API = Api(33, "AlterConfigs", 0, 2, AlterConfigsRequest, AlterConfigsResponse, handle)
