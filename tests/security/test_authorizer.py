"""The authorizer, held against a model of Kafka's that looks at every list, and has neither an index nor a memory."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.security import authorizer as authorizer_module
from kafscale.security.acls import AclBinding, AclOperation, PatternType, Permission, ResourceType, Right
from kafscale.security.authorizer import AclAuthorizer
from kafscale.security.principals import Principal

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST = "10.0.0.1"
READ_TOPIC = Right(AclOperation.READ, ResourceType.TOPIC)
WRITE_TOPIC = Right(AclOperation.WRITE, ResourceType.TOPIC)
DESCRIBE_TOPIC = Right(AclOperation.DESCRIBE, ResourceType.TOPIC)
DESCRIBE_CONFIGS = Right(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
READ_GROUP = Right(AclOperation.READ, ResourceType.GROUP)
RIGHTS = (READ_TOPIC, WRITE_TOPIC, DESCRIBE_TOPIC, DESCRIBE_CONFIGS, READ_GROUP)

ALLOW_READ = AclBinding(
    resource_type=ResourceType.TOPIC,
    pattern_type=PatternType.LITERAL,
    resource_name="orders",
    principal="User:alice",
    host="*",
    operation=AclOperation.READ,
    permission=Permission.ALLOW,
)


def authorizer_of(*bindings: AclBinding, allows_without_acls: bool = False) -> AclAuthorizer:
    made = AclAuthorizer(super_users=frozenset({"User:root"}), allows_without_acls=allows_without_acls)
    for each in bindings:
        made.acls.add(each)
    return made


def test_a_deny_goes_before_an_allow() -> None:
    deny = attrs.evolve(ALLOW_READ, resource_name="*", principal="User:*", permission=Permission.DENY)
    assert authorizer_of(ALLOW_READ).allows(ALICE, HOST, READ_TOPIC, "orders")
    assert not authorizer_of(ALLOW_READ, deny).allows(ALICE, HOST, READ_TOPIC, "orders")
    assert authorizer_of(deny).allows(Principal("User", "root"), HOST, READ_TOPIC, "orders")


@pytest.mark.parametrize("operation", [AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER])
def test_a_topic_operation_that_implies_describe_allows_describe(operation: AclOperation) -> None:
    allow = attrs.evolve(ALLOW_READ, operation=operation)
    assert authorizer_of(allow).allows(ALICE, HOST, DESCRIBE_TOPIC, "orders")
    deny = attrs.evolve(allow, permission=Permission.DENY)
    everything = attrs.evolve(ALLOW_READ, operation=AclOperation.ALL)
    assert authorizer_of(everything, deny).allows(ALICE, HOST, DESCRIBE_TOPIC, "orders")


def test_alter_configs_implies_describe_configs_but_not_describe() -> None:
    made = authorizer_of(attrs.evolve(ALLOW_READ, operation=AclOperation.ALTER_CONFIGS))
    assert made.allows(ALICE, HOST, DESCRIBE_CONFIGS, "orders")
    assert not made.allows(ALICE, HOST, DESCRIBE_TOPIC, "orders")


def test_allows_without_acls_applies_only_to_resources_without_acls() -> None:
    made = authorizer_of(ALLOW_READ, allows_without_acls=True)
    assert made.allows(BOB, HOST, READ_TOPIC, "payments")
    assert not made.allows(BOB, HOST, READ_TOPIC, "orders")
    assert not made.allows(ALICE, HOST, WRITE_TOPIC, "orders")


def test_an_answer_is_forgotten_when_the_lists_change() -> None:
    made = authorizer_of(ALLOW_READ)
    assert made.allows(ALICE, HOST, READ_TOPIC, "orders")
    made.acls.remove(ALLOW_READ)
    made.changed()
    assert not made.allows(ALICE, HOST, READ_TOPIC, "orders")
    assert made.version == 1


def test_answers_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer_module, "VERDICTS_MAX_COUNT", 10)
    made = authorizer_of(ALLOW_READ)
    for index in range(25):
        made.allows(ALICE, HOST, READ_TOPIC, f"t{index}")
        assert len(made._verdicts) <= 10
    made.changed()
    made.allows(ALICE, HOST, READ_TOPIC, "x" * 32_000)
    assert not made._verdicts


def test_a_refusal_names_the_acl_that_denies_it() -> None:
    deny = attrs.evolve(ALLOW_READ, permission=Permission.DENY, operation=AclOperation.ALL)
    assert authorizer_of(ALLOW_READ).rule(ALICE, HOST, WRITE_TOPIC, "orders") == "no ACL allows it"
    rule = authorizer_of(ALLOW_READ, deny).rule(ALICE, HOST, WRITE_TOPIC, "orders")
    assert rule == "DENY User:alice from * to ALL TOPIC:LITERAL:orders"


NAMES = st.text("ab", min_size=1, max_size=4)
BINDINGS = st.builds(
    AclBinding,
    resource_type=st.sampled_from([ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP]),
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    resource_name=NAMES | st.just("*"),
    principal=st.sampled_from(["User:alice", "User:bob", "User:*", "Team:alice"]),
    host=st.sampled_from([HOST, "10.0.0.2", "*"]),
    operation=st.sampled_from(
        [
            *(AclOperation.ALL, AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE),
            *(AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS, AclOperation.DELETE),
        ]
    ),
    permission=st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
)
LISTS = st.lists(BINDINGS, max_size=8)
WHO = st.sampled_from([ALICE, BOB, Principal("User", "root"), Principal("Team", "alice")])


@attrs.frozen
class Model:
    """What Kafka's StandardAuthorizer says, in the order of its code, of lists that are looked at one by one."""

    bindings: Sequence[AclBinding]
    allows_without_acls: bool

    def allows(self, principal: Principal, host: str, right: Right, name: str) -> bool:
        if str(principal) == "User:root":
            return True
        about = [each for each in self.bindings if self._is_about(each, right, name)]
        results = [result for each in about if (result := self._result(each, principal, host, right)) is not None]
        if Permission.DENY in results:
            return False
        return Permission.ALLOW in results or (not about and self.allows_without_acls)

    @staticmethod
    def _is_about(binding: AclBinding, right: Right, name: str) -> bool:
        if binding.resource_type is not right.resource_type:
            return False
        if binding.pattern_type is PatternType.PREFIXED:
            return name.startswith(binding.resource_name)
        return binding.resource_name in ("*", name)

    @staticmethod
    def _result(binding: AclBinding, principal: Principal, host: str, right: Right) -> Permission | None:
        if binding.principal not in (str(principal), "User:*") or binding.host not in (host, "*"):
            return None
        operation, wanted = binding.operation, right.operation
        enough = {AclOperation.ALL, wanted}
        if binding.permission is Permission.ALLOW and wanted is AclOperation.DESCRIBE:
            enough |= {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
        if binding.permission is Permission.ALLOW and wanted is AclOperation.DESCRIBE_CONFIGS:
            enough.add(AclOperation.ALTER_CONFIGS)
        return binding.permission if operation in enough else None

    def allows_some(self, principal: Principal, host: str, right: Right) -> bool:
        """`Authorizer.authorizeByResourceType` of Kafka."""
        if self.allows(principal, host, right, "hardcode"):
            return True
        mine = [
            each
            for each in self.bindings
            if each.resource_type is right.resource_type
            and each.principal in (str(principal), "User:*")
            and each.host in (host, "*")
            and each.operation in (right.operation, AclOperation.ALL)
        ]
        denied = [each for each in mine if each.permission is Permission.DENY]
        allowed = [each for each in mine if each.permission is Permission.ALLOW]
        literal_denied = {each.resource_name for each in denied if each.pattern_type is PatternType.LITERAL}
        prefixes_denied = [each.resource_name for each in denied if each.pattern_type is PatternType.PREFIXED]
        if "*" in literal_denied:
            return False
        for each in allowed:
            is_literal = each.pattern_type is PatternType.LITERAL
            if is_literal and each.resource_name == "*":
                return True
            if is_literal and each.resource_name in literal_denied:
                continue
            if not any(each.resource_name.startswith(prefix) for prefix in prefixes_denied):
                return True
        return False


@settings(max_examples=300, deadline=None)
@given(LISTS, st.lists(st.integers(0, 7), max_size=4), NAMES, WHO, st.booleans())
def test_decisions_match_a_model_of_kafkas_authorizer(
    bindings: list[AclBinding], removed: list[int], name: str, principal: Principal, allows_without_acls: bool
) -> None:
    made = authorizer_of(*bindings, allows_without_acls=allows_without_acls)
    gone = {bindings[index] for index in removed if index < len(bindings)}
    for each in gone:
        made.acls.remove(each)
    model = Model([each for each in bindings if each not in gone], allows_without_acls)
    assert set(made.acls) == set(model.bindings)
    for right in RIGHTS:
        for asked in (name, "*", "a"):
            expected = model.allows(principal, HOST, right, asked)
            assert made.allows(principal, HOST, right, asked) is expected
            assert made.allows(principal, HOST, right, asked) is expected  # as it is remembered
        assert made.allows_some(principal, HOST, right) is model.allows_some(principal, HOST, right)
