from __future__ import annotations

from typing import Any

import pytest

from kafscale.api.cluster.api_versions import LEVELS
from kafscale.api.cluster.update_features import API, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, UPGRADE
from kafscale.cluster.membership.node import Node
from kafscale.wire.error_codes import INVALID_UPDATE_VERSION, NONE
from kafscale.wire.messages.cluster import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from tests.api.handlers import ask, some_services

NODE = Node(node_id=7, cluster_id="the-cluster", broker_epoch=3, advertised={})
METADATA, TRANSACTION = "metadata.version", "transaction.version"


def to(feature: str, level: int, upgrade_type: int = UPGRADE) -> FeatureUpdateKey:
    return FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=upgrade_type)


async def update(*updates: FeatureUpdateKey, version: int = 2, validate_only: bool = False) -> UpdateFeaturesResponse:
    request = UpdateFeaturesRequest(feature_updates=list(updates), validate_only=validate_only)
    response: UpdateFeaturesResponse = await ask(API, some_services(node=NODE), request, version=version)
    return response


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("version", range(3))
async def test_features_keep_the_levels_that_they_have(version: int, validate_only: bool) -> None:
    wanted = [to(name, level) for name, level in LEVELS.items()]
    response = await update(*wanted, *wanted, version=version, validate_only=validate_only)
    assert (response.error_code, response.error_message) == (NONE, None)
    told = [(each.feature, each.error_code) for each in response.results]
    assert told == ([(name, NONE) for name in LEVELS] if version < 2 else [])


@pytest.mark.parametrize("upgrade_type", [UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
@pytest.mark.parametrize(
    ("feature", "level", "why"),
    [
        (METADATA, 28, "Local controller 7 only supports versions 27"),
        (METADATA, 0, "Local controller 7 only supports versions 27"),
        (TRANSACTION, 1, "Local controller 7 only supports versions 2"),
        (TRANSACTION, -1, "A feature version cannot be less than 0."),
        ("kraft.version", 1, "Local controller 7 does not support this feature."),
        ("nope", 1, "Local controller 7 does not support this feature."),
        ("nope", 0, "Feature nope not found."),
        ("nope", -1, "A feature version cannot be less than 0."),
    ],
)
async def test_no_other_level_is_supported(feature: str, level: int, why: str, upgrade_type: int) -> None:
    for version in range(3):
        response: Any = await update(to(METADATA, 27), to(feature, level, upgrade_type), to("x", 1), version=version)
        assert response.error_code == INVALID_UPDATE_VERSION
        assert response.error_message == (
            "The update failed for all features since the following feature had an error: "
            f"Invalid update version {level} for feature {feature}. {why}"
        )
        assert response.results == []


@pytest.mark.parametrize(("upgrade_type", "is_known"), [(0, False), (1, True), (2, True), (3, True), (4, False)])
async def test_kinds_of_updates_are_checked_from_version_1(upgrade_type: int, is_known: bool) -> None:
    for version in range(3):
        message = (await update(to(TRANSACTION, 2, upgrade_type), version=version)).error_message or ""
        refused = "The controller does not support the given upgrade type." in message
        assert refused == (version >= 1 and not is_known)


async def test_the_last_of_two_entries_of_a_feature_counts() -> None:
    assert (await update(to(TRANSACTION, 1), to(TRANSACTION, 2))).error_code == NONE
    assert (await update(to(TRANSACTION, 2), to(TRANSACTION, 1))).error_code == INVALID_UPDATE_VERSION


@pytest.mark.parametrize("version", range(3))
async def test_an_update_of_nothing_succeeds(version: int) -> None:
    response = await update(version=version)
    assert (response.error_code, response.error_message, response.results) == (NONE, None, [])
