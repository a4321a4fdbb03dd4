from __future__ import annotations

import pytest

from kafscale.security.acls import AclBinding, AclFilter, AclOperation, PatternType, Permission, ResourceType


def binding(
    name: str, *, pattern_type: PatternType = PatternType.LITERAL, resource_type: ResourceType = ResourceType.TOPIC
) -> AclBinding:
    return AclBinding(
        resource_type=resource_type,
        pattern_type=pattern_type,
        resource_name=name,
        principal="User:alice",
        host="10.0.0.1",
        operation=AclOperation.READ,
        permission=Permission.ALLOW,
    )


LITERAL, PREFIXED, ANY_NAME = (
    binding("orders"),
    binding("ord", pattern_type=PatternType.PREFIXED),
    binding("*"),
)
ALL = (LITERAL, PREFIXED, ANY_NAME, binding("other"), binding("orders", resource_type=ResourceType.GROUP))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AclFilter(), ALL),
        (AclFilter(resource_type=ResourceType.GROUP), ALL[4:]),
        (AclFilter(resource_type=ResourceType.TOPIC, resource_name="orders"), (LITERAL,)),
        (
            AclFilter(resource_type=ResourceType.TOPIC, resource_name="orders", pattern_type=PatternType.MATCH),
            (LITERAL, PREFIXED, ANY_NAME),
        ),
        (AclFilter(pattern_type=PatternType.MATCH), ALL),
        (AclFilter(resource_name="orders", pattern_type=PatternType.PREFIXED), ()),
        (AclFilter(resource_name="ord", pattern_type=PatternType.PREFIXED), (PREFIXED,)),
        (AclFilter(resource_name="*", pattern_type=PatternType.LITERAL), (ANY_NAME,)),
        (AclFilter(resource_name="or", pattern_type=PatternType.MATCH), (ANY_NAME,)),
        (AclFilter(principal="User:bob"), ()),
        (AclFilter(principal="User:alice", host="10.0.0.1"), ALL),
        (AclFilter(host="*"), ()),
        (AclFilter(operation=AclOperation.READ, permission=Permission.ALLOW), ALL),
        (AclFilter(operation=AclOperation.WRITE), ()),
        (AclFilter(permission=Permission.DENY), ()),
    ],
)
def test_an_acl_filter_matches_the_same_bindings_as_kafka(wanted: AclFilter, found: tuple[AclBinding, ...]) -> None:
    assert tuple(each for each in ALL if wanted.matches(each)) == found


def test_enum_values_equal_those_of_kafkas_protocol() -> None:
    assert [each.name for each in map(ResourceType, range(2, 8))] == [
        *("TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER")
    ]
    assert (PatternType(2), PatternType(3), PatternType(4)) == (
        *(PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED),
    )
    assert [each.name for each in map(AclOperation, range(2, 16))] == [
        *("ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS"),
        *("ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT"),
    ]
    assert (Permission(2), Permission(3)) == (Permission.DENY, Permission.ALLOW)


@pytest.mark.parametrize("code", [-1, 16, 100])
def test_an_undefined_operation_code_becomes_unknown(code: int) -> None:
    assert AclOperation(code) is AclOperation.UNKNOWN
    assert AclFilter(operation=AclOperation(code)).is_unknown
    assert not AclFilter().is_unknown


def test_bindings_and_filters_accept_numbers_and_filters_flag_unknown_ones() -> None:
    about = {"resource_name": "orders", "principal": "User:alice", "host": "10.0.0.1"}
    made = AclBinding(resource_type=2, pattern_type=3, operation=3, permission=3, **about)
    assert made == LITERAL
    assert isinstance(made.operation, AclOperation)
    assert not AclFilter(resource_type=2, pattern_type=3, operation=3, permission=3).is_unknown
    for unknown in ({"resource_type": 8}, {"pattern_type": -1}, {"operation": 99}, {"permission": 0}):
        assert AclFilter(**unknown).is_unknown
