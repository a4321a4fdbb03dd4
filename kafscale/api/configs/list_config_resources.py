"""ListConfigResources (74, KIP-1142): the resources that have configs.

v0  (flexible) client metrics only (KIP-714): an empty list
v1  of the types that are named, or of all

These are the brokers, the topics, and the groups that have configs of their own. Client metrics and a broker's loggers
have no configs and are not listed. A type that Kafka does not know is UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kafscale.api.configs.config_resources import BROKER, GROUP, TOPIC
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.wire.error_codes import UNSUPPORTED_VERSION
from kafscale.wire.messages.configs import ListConfigResourcesRequest, ListConfigResourcesResponse, ListedConfigResource
from kafscale.wire.schema import mapped

BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
TYPES: Final = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})


def handle(services: Services, call: Call, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    wanted: Collection[int] = {CLIENT_METRICS} if call.version == 0 else set(request.resource_types) or TYPES
    if not TYPES.issuperset(wanted):
        return ListConfigResourcesResponse(error_code=UNSUPPORTED_VERSION)
    found: list[tuple[int, str]] = []
    if BROKER in wanted:
        found += [(BROKER, str(node.node_id)) for node in services.assignment.brokers()]
    if TOPIC in wanted:
        found += [(TOPIC, topic.name) for topic in services.topics.all()]
    if GROUP in wanted:
        found += [(GROUP, group_id) for group_id in services.group_configs.group_ids()]
    return ListConfigResourcesResponse(
        config_resources=mapped(lambda of: ListedConfigResource(resource_type=of[0], resource_name=of[1]), found)
    )


API = Api(74, "ListConfigResources", 0, 1, ListConfigResourcesRequest, ListConfigResourcesResponse, handle)
