"""All access control lists, arranged so that a question costs a few lookups however many there are.

A resource is matched by the literal pattern of its name, by that of `*`, and by the prefixed patterns of its first
letters: one lookup for each length that a prefix has. Of a pattern, what it says to a principal from a host is looked
up too, as a set of bits, in which what an operation implies has been filled in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import attrs

from kafscale.security.acls import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclBinding,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    Right,
)

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
        """Tell whether it says so of the operation itself, implied ones not counted."""
        return any(
            binding.permission is permission and binding.operation in (operation, AclOperation.ALL)
            for binding in self.bindings
        )


@attrs.frozen
class AclsFound:
    """Answer of the lists. `has_acls` if any list is about the resource, for any principal."""

    allowed: bool
    denied: bool
    has_acls: bool


@attrs.define(eq=False, repr=False)
class AclIndex:
    """A set of bindings. What is asked of it is asked by subjects that `subjects_of` makes.

    `may_deny_all` says that there is another one, of which nothing else is known.
    """

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
        """Take it in, unless it is there."""
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
        """Forget it, if it is there."""
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
                self._forget_prefix(binding)

    def _forget_prefix(self, binding: AclBinding) -> None:
        lengths = self._prefix_lengths[binding.resource_type]
        lengths[len(binding.resource_name)] -= 1
        if not lengths[len(binding.resource_name)]:
            del lengths[len(binding.resource_name)]

    def find(self, subjects: Collection[Subject], right: Right, name: str) -> AclsFound:
        """Tell what is said of a right to the resource of this name."""
        if self.may_deny_all:
            return AclsFound(allowed=False, denied=True, has_acls=True)
        bit = 1 << right.operation
        allowed, has_acls = False, False
        for pattern in self._about(right.resource_type, name):
            has_acls = True
            for subject in subjects:
                entries = pattern.get(subject)
                if entries is not None:
                    if entries.denied_bits & bit:
                        return AclsFound(allowed=False, denied=True, has_acls=True)
                    allowed = allowed or bool(entries.allowed_bits & bit)
        return AclsFound(allowed=allowed, denied=False, has_acls=has_acls)

    def _about(self, resource_type: ResourceType, name: str) -> Iterator[dict[Subject, _Entries]]:
        for literal in {name, WILDCARD}:
            if (found := self._patterns.get((resource_type, PatternType.LITERAL, literal))) is not None:
                yield found
        for length in self._prefix_lengths.get(resource_type, ()):
            key = resource_type, PatternType.PREFIXED, name[:length]
            if length <= len(name) and (found := self._patterns.get(key)) is not None:
                yield found

    def bindings_about(self, subjects: Collection[Subject], right: Right, name: str) -> Iterable[AclBinding]:
        """Return what is said to these subjects of a resource, whatever the operation."""
        for pattern in self._about(right.resource_type, name):
            for subject in subjects:
                if (entries := pattern.get(subject)) is not None:
                    yield from entries.bindings

    def allows_some(self, subjects: Collection[Subject], right: Right) -> bool:
        """Tell whether there can be a resource, of whatever name, to which the right is given.

        It is Kafka's `Authorizer.authorizeByResourceType`, where an operation implies no other one.
        """
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
        """The patterns of a type of resources with which the operation is allowed, or denied."""
        return {
            named
            for subject in subjects
            for named, entries in self._said_to.get((right.resource_type, subject), {}).items()
            if entries.says(permission, right.operation)
        }


def subjects_of(principal: str, host: str) -> Collection[Subject]:
    """Everything that a binding may call who comes from there."""
    return {(name, place) for name in (principal, WILDCARD_PRINCIPAL) for place in (host, WILDCARD)}


def _pattern_key(binding: AclBinding) -> _PatternKey:
    return binding.resource_type, binding.pattern_type, binding.resource_name


def _bits(operation: AclOperation) -> int:
    return _ALL_BITS if operation is AclOperation.ALL else 1 << operation
