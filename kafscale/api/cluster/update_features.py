"""UpdateFeatures (57, KIP-584): raise or lower the levels of the cluster's features (`kafka-features.sh`).

v0  (flexible) each feature and its level
v1  kinds of downgrades, and `validate_only` (KIP-778)
v2  answers for the whole, no longer for each feature

All succeed, or none. Each feature has one level, that of the broker's version: setting it changes nothing, and any
other level is INVALID_UPDATE_VERSION, as an unsupported one in Kafka. The last entry of a feature counts.
"""

from __future__ import annotations

from kafscale.api.cluster.api_versions import LEVELS
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import in_turns
from kafscale.wire.error_codes import INVALID_UPDATE_VERSION, NONE
from kafscale.wire.messages.cluster import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kafscale.wire.schema import mapped

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


async def handle(services: Services, call: Call, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    updates = {update.feature: update async for update in in_turns(request.feature_updates)}
    for update in updates.values():  # an unknown feature is refused, so there are no more than the known ones
        reason = _why_not(services, update)
        if reason is not None:
            message = (
                "The update failed for all features since the following feature had an error: Invalid update version "
                f"{update.max_version_level} for feature {update.feature}. {reason}"
            )
            return UpdateFeaturesResponse(error_code=INVALID_UPDATE_VERSION, error_message=message)
    return UpdateFeaturesResponse(results=mapped(_success, tuple(updates)) if call.version <= 1 else [])


def _success(feature: str) -> UpdatableFeatureResult:
    return UpdatableFeatureResult(feature=feature, error_code=NONE)


def _why_not(services: Services, update: FeatureUpdateKey) -> str | None:
    level = LEVELS.get(update.feature, 0)
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if update.max_version_level < 0:
        return "A feature version cannot be less than 0."
    if update.max_version_level != level:
        controller = f"Local controller {services.assignment.controller_id}"
        return (
            f"{controller} only supports versions {level}" if level else f"{controller} does not support this feature."
        )
    return None if update.feature in LEVELS else f"Feature {update.feature} not found."


API = Api(57, "UpdateFeatures", 0, 2, UpdateFeaturesRequest, UpdateFeaturesResponse, handle)
