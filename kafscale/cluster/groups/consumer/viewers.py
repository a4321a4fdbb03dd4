"""The clients of members that subscribe by regular expressions.

Records do not name a member's client: after a restart it is known from the member's next heartbeat on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

import attrs


@attrs.frozen
class _Searched:
    """The clients that an expression was last searched for, and the version of their rights."""

    viewers: frozenset[Hashable] = frozenset()
    rights_version: int | None = None


NOT_SEARCHED = _Searched()


@attrs.define(eq=False, repr=False)
class Viewers:
    """The clients of one group; `waiting` are members for whose rights their expression has not been searched yet."""

    waiting: set[str] = attrs.field(factory=set, init=False)
    _of_member: dict[str, tuple[str, Hashable]] = attrs.field(factory=dict, init=False)
    _by_regex: dict[str, Counter[Hashable]] = attrs.field(factory=dict, init=False)
    _searched: dict[str, _Searched] = attrs.field(factory=dict, init=False)

    def put(self, member_id: str, regex: str, viewer: Hashable, *, is_known: bool) -> None:
        """Note a member's client. A member that had the expression before (`is_known`) keeps its topics."""
        before = self._of_member.get(member_id)
        if before == (regex, viewer):
            return
        self.remove(member_id)
        self._of_member[member_id] = (regex, viewer)
        self._by_regex.setdefault(regex, Counter())[viewer] += 1
        if viewer not in self._searched.get(regex, NOT_SEARCHED).viewers and (before is not None or not is_known):
            self.waiting.add(member_id)

    def remove(self, member_id: str) -> None:
        self.waiting.discard(member_id)
        before = self._of_member.pop(member_id, None)
        if before is None:
            return
        regex, viewer = before
        counts = self._by_regex[regex]
        counts[viewer] -= 1
        if not counts[viewer]:
            del counts[viewer]
        if not counts:
            del self._by_regex[regex]

    def of(self, regex: str, member_count: int) -> frozenset[Hashable] | None:
        """Return the clients that subscribe by an expression, or None if that of a member is not known yet."""
        counts = self._by_regex.get(regex)
        return None if counts is None or counts.total() != member_count else frozenset(counts)

    def is_searched(self, regex: str, viewers: frozenset[Hashable], rights_version: int) -> bool:
        """Tell whether an expression has been searched for these clients, with the rights that they have now."""
        searched = self._searched.get(regex, NOT_SEARCHED)
        return rights_version == searched.rights_version and viewers <= searched.viewers

    def note_searched(self, viewers: Mapping[str, frozenset[Hashable]], rights_version: int) -> bool:
        """Note that expressions were searched for these clients; tell whether members have waited for that."""
        self._searched = {regex: searched for regex, searched in self._searched.items() if regex in self._by_regex}
        self._searched |= {regex: _Searched(of_regex, rights_version) for regex, of_regex in viewers.items()}
        served = {
            member_id
            for member_id in self.waiting
            for regex, viewer in [self._of_member[member_id]]
            if viewer in viewers.get(regex, NOT_SEARCHED.viewers)
        }
        self.waiting -= served
        return bool(served)
