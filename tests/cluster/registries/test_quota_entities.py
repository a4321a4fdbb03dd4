"""Which quota applies to a client and who shares it, held against a plain model of Kafka's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafscale.cluster.registries.client_quotas import DEFAULT, Name, QuotaEntity, QuotaLimits

NAMES = ("alice", "bob", "a", "")  # those of users are those of client ids too: the two must not be mistaken
KAFKA_DEFAULT = "<default>"
quoted_names = st.sampled_from([*NAMES[:3], DEFAULT])
entities = st.builds(
    lambda user, client_id: QuotaEntity(user=user, client_id=client_id),
    st.none() | quoted_names,
    st.none() | quoted_names,
).filter(lambda entity: entity.names)


def path(user: Name | None, client_id: Name | None) -> str:
    """An entity as Kafka had it in ZooKeeper, and has it in its comments."""
    parts = [("users", user), ("clients", client_id)]
    told = ((kind, KAFKA_DEFAULT if name is DEFAULT else name) for kind, name in parts if name is not None)
    return "".join(f"/{kind}/{name}" for kind, name in told)


def kafkas_tags(quotas: Mapping[str, float], user: str, client_id: str) -> tuple[str, str]:
    """DefaultQuotaCallback.quotaMetricTags, of a broker that has had quotas of all kinds."""
    if f"/users/{user}/clients/{client_id}" in quotas or f"/users/{user}/clients/<default>" in quotas:
        return user, client_id
    if f"/users/{user}" in quotas:
        return user, ""
    if f"/users/<default>/clients/{client_id}" in quotas or "/users/<default>/clients/<default>" in quotas:
        return user, client_id
    return (user, "") if "/users/<default>" in quotas else ("", client_id)


def kafkas_limit(quotas: Mapping[str, float], tags: tuple[str, str]) -> float | None:
    """DefaultQuotaCallback.quotaLimit."""
    user, client_id = tags
    if user and client_id:
        candidates = [(user, client_id), (user, KAFKA_DEFAULT), (KAFKA_DEFAULT, client_id), (KAFKA_DEFAULT,) * 2]
        paths = [f"/users/{each}/clients/{other}" for each, other in candidates]
    elif user:
        paths = [f"/users/{user}", "/users/<default>"]
    else:
        paths = [f"/clients/{client_id}", "/clients/<default>"] if client_id else []
    return next((quotas[each] for each in paths if each in quotas), None)


@given(st.dictionaries(entities, st.integers(1, 1000)), st.sampled_from(NAMES[:3]), st.sampled_from(NAMES[:3]))
@example({QuotaEntity(user="alice"): 1, QuotaEntity(user=DEFAULT, client_id="a"): 2}, "alice", "a")
@example({QuotaEntity(user=DEFAULT): 1, QuotaEntity(client_id="a"): 2}, "alice", "a")
def test_the_limit_and_its_sharers_are_kafkas(quotas: dict[QuotaEntity, float], user: str, client_id: str) -> None:
    found = QuotaLimits.of(quotas.items()).limit(user, client_id)
    kafkas = {path(entity.user, entity.client_id): value for entity, value in quotas.items()}
    tags = kafkas_tags(kafkas, user, client_id)
    assert (None if found is None else found.value) == kafkas_limit(kafkas, tags)
    if found is not None:
        assert (found.user or "", found.client_id or "") == tags


@pytest.mark.parametrize(
    ("entity", "value"), [(QuotaEntity(client_id=DEFAULT), 1.0), (QuotaEntity(user="alice", client_id=DEFAULT), 2.0)]
)
def test_a_client_without_id_gets_the_default_quota(entity: QuotaEntity, value: float) -> None:
    """In Kafka such a client has no quota at all, however many there are."""
    found = QuotaLimits.of([(entity, value)]).limit("alice", "")
    assert found is not None
    assert (found.value, found.client_id) == (value, "")
