"""Decides rights by access control lists, as Kafka's StandardAuthorizer does.

Super users may do everything. For anybody else a DENY goes before any ALLOW, and what nothing is said of is denied: to
all of a resource that has lists, and unless `allows_without_acls` is set to all of one that has none.
"""

from __future__ import annotations

from typing import Final

import attrs

from kafscale.security.acl_index import AclIndex, subjects_of
from kafscale.security.acls import DESCRIBE_TOPIC, AclBinding, AclOperation, Permission, Right
from kafscale.security.principals import Principal

# Answers that are remembered: some 300 bytes each. When there are more all are forgotten, which costs a few
# microseconds each.
VERDICTS_MAX_COUNT: Final = 20_000
REMEMBERED_NAME_MAX_LENGTH: Final = 255  # topics have 249 at most; group ids may have kilobytes
_SOME_NAME: Final = "hardcode"  # what Kafka asks for to see whether a user may do something whatever the name


@attrs.frozen
class Viewer:
    """A client, as far as its rights are concerned: the host is empty where no list names a host."""

    principal: Principal
    host: str


_Question = tuple[Principal, str, Right, str | None]  # the name is None for "some resource of the type"


@attrs.define(eq=False, kw_only=True, repr=False)
class AclAuthorizer:
    """One per broker. `changed` is to be called after each change of `acls`."""

    super_users: frozenset[str] = frozenset()
    allows_without_acls: bool = False
    acls: AclIndex = attrs.field(factory=AclIndex)
    version: int = attrs.field(default=0, init=False)
    _verdicts: dict[_Question, bool] = attrs.field(factory=dict, init=False)

    def changed(self) -> None:
        """Forget all answers: those of another version of the lists."""
        self.version += 1
        self._verdicts.clear()

    def allows(self, principal: Principal, host: str, right: Right, name: str) -> bool:
        """Tell whether somebody has a right to the resource of this name."""
        verdict = self._verdicts.get((principal, host, right, name))
        if verdict is None:
            verdict = self._remember((principal, host, right, name), self._decide(principal, host, right, name))
        return verdict

    def viewer(self, principal: Principal, host: str) -> Viewer:
        """Return what a client's rights depend on, to be remembered."""
        return Viewer(principal, host if self.acls.host_count else "")

    def may_describe(self, viewer: Viewer, topic: str) -> bool:
        """Tell whether a client may know of a topic."""
        return self.allows(viewer.principal, viewer.host, DESCRIBE_TOPIC, topic)

    def allows_some(self, principal: Principal, host: str, right: Right) -> bool:
        """Tell whether somebody may have a right to a resource of some name: Kafka's authorizeByResourceType."""
        verdict = self._verdicts.get((principal, host, right, None))
        if verdict is None:
            decided = self._decide(principal, host, right, _SOME_NAME) or self.acls.allows_some(
                subjects_of(str(principal), host), right
            )
            verdict = self._remember((principal, host, right, None), decided)
        return verdict

    def rule(self, principal: Principal, host: str, right: Right, name: str) -> str:
        """Say what a refusal rests on: for the log of refusals."""
        said = self.acls.bindings_about(subjects_of(str(principal), host), right, name)
        found = (binding for binding in said if _denies(binding, right.operation))
        return str(next(found, "no ACL allows it"))

    def _decide(self, principal: Principal, host: str, right: Right, name: str) -> bool:
        if str(principal) in self.super_users:
            return True
        found = self.acls.find(subjects_of(str(principal), host), right, name)
        if found.has_acls:
            return found.allowed
        return self.allows_without_acls

    def _remember(self, question: _Question, verdict: bool) -> bool:
        principal, _, _, name = question
        if len(name or "") + len(principal.name) <= REMEMBERED_NAME_MAX_LENGTH:
            if len(self._verdicts) >= VERDICTS_MAX_COUNT:
                self._verdicts.clear()
            self._verdicts[question] = verdict
        return verdict


def _denies(binding: AclBinding, operation: AclOperation) -> bool:
    return binding.permission is Permission.DENY and binding.operation in (operation, AclOperation.ALL)
