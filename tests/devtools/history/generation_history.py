"""Checker of the answers to members of a classic consumer group, over moves of its coordinator.

Members record every assignment with the leader's name for it, when they are about to join again, and their commits;
`GenerationsSeen.problems` finds

    two owners             a partition of one generation given to two members; or given to one while another one of an
                           earlier generation had it, had not joined again, and was on time
    two assignments        a generation for which its members got parts of different assignments
    generation went back   an assignment of an earlier generation than somebody had before it was asked for
    refused without cause  a member that is on time is not known, or its generation is not the present one
    zombie                 a commit was done of a generation before one that somebody had before that was sent
    no agreement           some time after all had become quiet, members of different generations, a partition without
                           exactly one owner, or unread records

An assignment is durable before anybody gets it, so all this holds over any coordinators. Joins and departures are not:
where the coordinator moves, members may be back. A broker that answers and does not coordinate the group any more
(`is_known` is False) may repeat earlier answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import attrs

from tests.devtools.history.member_history import Assigned, wrong_owners

NO_GENERATION = -1


@attrs.define(eq=False, kw_only=True)
class Participant:
    """One process of a group, under one member id after the other. `has` are its partitions."""

    name: str
    member_id: str = ""
    generation: int = NO_GENERATION
    has: Assigned = frozenset()
    safe_until: float = -math.inf  # before this the coordinator must not give what it has to others


@attrs.frozen
class Assignment:
    """Partitions of a generation; `author` is the leader's name for the whole assignment."""

    generation: int
    partitions: Assigned
    author: str


@attrs.define(eq=False, kw_only=True)
class GenerationsSeen:
    """A record of the members of one group. `note` gets each line of it, `now` is the time."""

    now: Callable[[], float]
    session_seconds: float
    rebalance_seconds: float
    note: Callable[[str], None] = lambda text: None
    problems: list[str] = attrs.field(factory=list, init=False)
    commits_count: int = attrs.field(default=0, init=False)  # that were done
    latest: int = attrs.field(default=NO_GENERATION, init=False)  # of which anybody has an assignment
    _authors: dict[int, str] = attrs.field(factory=dict, init=False)  # of each generation
    _owners: dict[tuple[int, int], str] = attrs.field(factory=dict, init=False)  # of a generation's partitions
    _holders: list[Participant] = attrs.field(factory=list, init=False)

    # ---- generations ----------------------------------------------------------------------------------------------

    def assigned(
        self, member: Participant, got: Assignment, *, began: float, latest_then: int, is_known: bool = True
    ) -> None:
        """Record an assignment that a member asked for at `began`, when `latest` was `latest_then`."""
        self.note(f"member {member.member_id} has {sorted(got.partitions)} of {got.generation} by {got.author}")
        author = self._authors.setdefault(got.generation, got.author)
        if author != got.author:
            self._found("two assignments", member, f"by {got.author}, others have that by {author}")
        if got.generation < latest_then and is_known:
            self._found("generation went back", member, f"{got.generation} after {latest_then}")
        self.latest = max(self.latest, got.generation)
        for partition in sorted(got.partitions):
            owner = self._owners.setdefault((got.generation, partition), member.member_id)
            if owner != member.member_id:
                self._found("two owners", member, f"{partition} of {got.generation} is {owner}'s")
        self._take(member, got)
        member.generation, member.has = got.generation, got.partitions
        member.safe_until = -math.inf
        if is_known:
            self.heard(member, began=began)
        self._holders = [holder for holder in self._holders if holder is not member] + [member]

    def _take(self, member: Participant, got: Assignment) -> None:
        for other in self._holders:
            both = other.has & got.partitions
            if other is member or not both or other.generation >= got.generation:
                continue
            if self.now() < other.safe_until:
                detail = f"{sorted(both)}, which {other.member_id} has until {other.safe_until:.3f}"
                self._found("two owners", member, detail)
            other.has -= both

    def heard(self, member: Participant, *, began: float) -> None:
        """Record that the coordinator accepted a heartbeat that was sent at `began`.

        No rebalance had begun by then, so no member may be left behind before the time for one is over.
        """
        member.safe_until = began + min(self.session_seconds, self.rebalance_seconds)

    def gave_up(self, member: Participant) -> None:
        """Record that a member has nothing any more: it joins again, leaves, or was refused."""
        member.has, member.safe_until = frozenset(), -math.inf
        self._holders = [holder for holder in self._holders if holder is not member]

    def refused(self, member: Participant, why: str, *, is_known: bool = True) -> None:
        """Record a refused heartbeat or commit: the member is unknown, or the generation is another one."""
        self.note(f"member {member.member_id} of {member.generation} is refused: {why}")
        if is_known and self.now() < member.safe_until:
            self._found("refused without cause", member, f"{why}, on time until {member.safe_until:.3f}")

    # ---- commits --------------------------------------------------------------------------------------------------

    def committed(self, member: Participant, generation: int, *, latest_then: int) -> None:
        """Record a commit of this generation, which was sent when `latest` was `latest_then`."""
        self.commits_count += 1
        if generation < latest_then:
            self._found("zombie", member, f"committed as of {generation}, and {latest_then} was there before")

    # ---- the end --------------------------------------------------------------------------------------------------

    def disagreement(self, members: Collection[Participant], partitions: Sequence[int]) -> str:
        """Return on which partitions all members disagree; empty if each has one owner."""
        generations = {member.member_id: member.generation for member in members}
        return f"generations {generations}" if len(set(generations.values())) > 1 else wrong_owners(members, partitions)

    def did_not_agree(self, detail: str) -> None:
        """Record that members still disagree after a long quiet time."""
        self.problems.append(f"no agreement: {detail}")

    def _found(self, kind: str, member: Participant, detail: str) -> None:
        who = f"{member.member_id} of generation {member.generation}"
        self.problems.append(f"{kind}: {who} at {self.now():.3f}: {detail}")
