"""Decides rights by access control lists, as Kafka's StandardAuthorizer does, in a few lookups for any number of lists.

Super users may do everything. For others a DENY wins over any ALLOW, and an operation without a list is denied: always
for a resource with lists, and for one without unless `allows_without_acls` is set.

A resource matches the literal pattern of its name, that of `*`, and the prefixed patterns of its first letters: one
lookup for each length of a prefix. The entry of a pattern for a principal from a host is a set of bits, with the
implied operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import attrs

from kafscale.security.acls import (
    DESCRIBE_TOPIC,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclBinding,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    Right,
)
from kafscale.security.principals import Principal

_ALL_BITS: Final = -1
# Which operations an ALLOW of one implies. A DENY implies none: who may not read may still be told of a topic.
_IMPLIED: Final = {
    **dict.fromkeys(
        (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER), AclOperation.DESCRIBE
    ),
    AclOperation.ALTER_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}

Subject = tuple[str, str]  # a principal and a host, each of them a name or the wildcard
_Named = tuple[PatternType, str]
_PatternKey = tuple[ResourceType, PatternType, str]


@attrs.define(eq=False, repr=False)
class _Entries:
    """Entries of a pattern for one subject."""

    bindings: set[AclBinding] = attrs.field(factory=set)
    allowed_bits: int = 0
    denied_bits: int = 0

    def sum_up(self) -> None:
        self.allowed_bits = self.denied_bits = 0
        for binding in self.bindings:
            if binding.permission is Permission.DENY:
                self.denied_bits |= _bits(binding.operation)
            else:
                self.allowed_bits |= _bits(binding.operation)
                if binding.operation in _IMPLIED:
                    self.allowed_bits |= 1 << _IMPLIED[binding.operation]

    def says(self, permission: Permission, operation: AclOperation) -> bool:
        """Tell whether an entry names the operation itself; implied ones don't count."""
        return any(
            binding.permission is permission and binding.operation in (operation, AclOperation.ALL)
            for binding in self.bindings
        )


@attrs.define(eq=False, repr=False)
class AclIndex:
    """A set of bindings, asked by subjects of `subjects_of`. `may_deny_all`: there is an unreadable binding."""

    may_deny_all: bool = attrs.field(default=False, init=False)
    host_count: int = attrs.field(default=0, init=False)  # of bindings for a single host
    _bindings: dict[AclBinding, None] = attrs.field(factory=dict, init=False)  # in the order in which they came
    _patterns: dict[_PatternKey, dict[Subject, _Entries]] = attrs.field(factory=dict, init=False)
    _said_to: dict[tuple[ResourceType, Subject], dict[_Named, _Entries]] = attrs.field(factory=dict, init=False)
    _prefix_lengths: dict[ResourceType, Counter[int]] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._bindings)

    def __iter__(self) -> Iterator[AclBinding]:
        return iter(self._bindings)

    def __contains__(self, binding: AclBinding) -> bool:
        return binding in self._bindings

    def add(self, binding: AclBinding) -> None:
        if binding in self._bindings:
            return
        self._bindings[binding] = None
        self.host_count += binding.host != WILDCARD
        key = _pattern_key(binding)
        if key not in self._patterns:
            self._patterns[key] = {}
            if binding.pattern_type is PatternType.PREFIXED:
                self._prefix_lengths.setdefault(binding.resource_type, Counter())[len(binding.resource_name)] += 1
        subject = binding.principal, binding.host
        entries = self._patterns[key].setdefault(subject, _Entries())
        entries.bindings.add(binding)
        entries.sum_up()
        self._said_to.setdefault((binding.resource_type, subject), {})[key[1:]] = entries

    def remove(self, binding: AclBinding) -> None:
        if binding not in self._bindings:
            return
        del self._bindings[binding]
        self.host_count -= binding.host != WILDCARD
        key = _pattern_key(binding)
        pattern, subject = self._patterns[key], (binding.principal, binding.host)
        entries = pattern[subject]
        entries.bindings.discard(binding)
        entries.sum_up()
        if not entries.bindings:
            del pattern[subject]
            del self._said_to[binding.resource_type, subject][key[1:]]
            if not self._said_to[binding.resource_type, subject]:
                del self._said_to[binding.resource_type, subject]
        if not pattern:
            del self._patterns[key]
            if binding.pattern_type is PatternType.PREFIXED:
                lengths = self._prefix_lengths[binding.resource_type]
                lengths[len(binding.resource_name)] -= 1
                if not lengths[len(binding.resource_name)]:
                    del lengths[len(binding.resource_name)]

    def find(self, subjects: Collection[Subject], right: Right, name: str) -> bool | None:
        """Tell whether the lists give a right to a resource; None if no list is about it, for any principal."""
        if self.may_deny_all:
            return False
        bit = 1 << right.operation
        allowed, has_acls = False, False
        for pattern in self._about(right.resource_type, name):
            has_acls = True
            for subject in subjects:
                entries = pattern.get(subject)
                if entries is not None:
                    if entries.denied_bits & bit:
                        return False
                    allowed = allowed or bool(entries.allowed_bits & bit)
        return allowed if has_acls else None

    def _about(self, resource_type: ResourceType, name: str) -> Iterator[dict[Subject, _Entries]]:
        for literal in {name, WILDCARD}:
            if (found := self._patterns.get((resource_type, PatternType.LITERAL, literal))) is not None:
                yield found
        for length in self._prefix_lengths.get(resource_type, ()):
            key = resource_type, PatternType.PREFIXED, name[:length]
            if length <= len(name) and (found := self._patterns.get(key)) is not None:
                yield found

    def bindings_about(self, subjects: Collection[Subject], right: Right, name: str) -> Iterable[AclBinding]:
        """Iterate over the bindings of these subjects for a resource, of any operation."""
        for pattern in self._about(right.resource_type, name):
            for subject in subjects:
                if (entries := pattern.get(subject)) is not None:
                    yield from entries.bindings

    def allows_some(self, subjects: Collection[Subject], right: Right) -> bool:
        """Tell whether the right may be given to some resource. As in Kafka, an operation implies no other one here."""
        if self.may_deny_all:
            return False
        allowed = self._said(subjects, right, Permission.ALLOW)
        denied = self._said(subjects, right, Permission.DENY)
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        if (PatternType.LITERAL, WILDCARD) in allowed:
            return True
        return any(
            (pattern_type is PatternType.PREFIXED or (pattern_type, name) not in denied)
            and not any((PatternType.PREFIXED, name[: end + 1]) in denied for end in range(len(name)))
            for pattern_type, name in allowed
        )

    def _said(self, subjects: Collection[Subject], right: Right, permission: Permission) -> set[_Named]:
        """Return the patterns of a type of resources with which the operation is allowed or denied."""
        return {
            named
            for subject in subjects
            for named, entries in self._said_to.get((right.resource_type, subject), {}).items()
            if entries.says(permission, right.operation)
        }


def subjects_of(principal: str, host: str) -> Collection[Subject]:
    """Return the subjects that bindings may name for this client."""
    return {(name, place) for name in (principal, WILDCARD_PRINCIPAL) for place in (host, WILDCARD)}


def _pattern_key(binding: AclBinding) -> _PatternKey:
    return binding.resource_type, binding.pattern_type, binding.resource_name


def _bits(operation: AclOperation) -> int:
    return _ALL_BITS if operation is AclOperation.ALL else 1 << operation


# Answers that are remembered: some 300 bytes each. When there are more all are forgotten, which costs a few
# microseconds each.
VERDICTS_MAX_COUNT: Final = 20_000
REMEMBERED_NAME_MAX_LENGTH: Final = 255  # topics have 249 at most; group ids may have kilobytes
_SOME_NAME: Final = "hardcode"  # what Kafka asks for to see whether a user may do something whatever the name


@attrs.frozen
class Viewer:
    """A client, as far as its rights depend on it: the host is empty if no list names a host."""

    principal: Principal
    host: str


_Question = tuple[Principal, str, Right, str | None]  # the name is None for "some resource of the type"


@attrs.define(eq=False, kw_only=True, repr=False)
class AclAuthorizer:
    """One per broker. Call `changed` after each change of `acls`."""

    super_users: frozenset[str] = frozenset()
    allows_without_acls: bool = False
    acls: AclIndex = attrs.field(factory=AclIndex)
    version: int = attrs.field(default=0, init=False)
    _verdicts: dict[_Question, bool] = attrs.field(factory=dict, init=False)

    def changed(self) -> None:
        self.version += 1
        self._verdicts.clear()

    def allows(self, principal: Principal, host: str, right: Right, name: str) -> bool:
        verdict = self._verdicts.get((principal, host, right, name))
        if verdict is None:
            verdict = self._remember((principal, host, right, name), self._decide(principal, host, right, name))
        return verdict

    def viewer(self, principal: Principal, host: str) -> Viewer:
        return Viewer(principal, host if self.acls.host_count else "")

    def may_describe(self, viewer: Viewer, topic: str) -> bool:
        return self.allows(viewer.principal, viewer.host, DESCRIBE_TOPIC, topic)

    def allows_some(self, principal: Principal, host: str, right: Right) -> bool:
        verdict = self._verdicts.get((principal, host, right, None))
        if verdict is None:
            decided = self._decide(principal, host, right, _SOME_NAME) or self.acls.allows_some(
                subjects_of(str(principal), host), right
            )
            verdict = self._remember((principal, host, right, None), decided)
        return verdict

    def rule(self, principal: Principal, host: str, right: Right, name: str) -> str:
        said = self.acls.bindings_about(subjects_of(str(principal), host), right, name)
        denials = (binding for binding in said if binding.permission is Permission.DENY)
        found = (binding for binding in denials if binding.operation in (right.operation, AclOperation.ALL))
        return str(next(found, "no ACL allows it"))

    def _decide(self, principal: Principal, host: str, right: Right, name: str) -> bool:
        if str(principal) in self.super_users:
            return True
        found = self.acls.find(subjects_of(str(principal), host), right, name)
        return self.allows_without_acls if found is None else found

    def _remember(self, question: _Question, verdict: bool) -> bool:
        principal, _, _, name = question
        if len(name or "") + len(principal.name) <= REMEMBERED_NAME_MAX_LENGTH:
            if len(self._verdicts) >= VERDICTS_MAX_COUNT:
                self._verdicts.clear()
            self._verdicts[question] = verdict
        return verdict
