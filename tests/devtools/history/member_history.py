"""Checker of members of consumer groups (KIP-848) and of the answers to them, over crashes of the broker.

Members record every heartbeat and its answer, the partitions that they give up, and their commits;
`MembersSeen.problems` finds

    two owners             a partition given to a member while another one had it, had not given it up, and was on time
    taken away unasked     a heartbeat accepted from a member whose partitions had been given to another one
    epoch went back        a member's epoch less than an earlier one, without a new join
    refused without cause  a member that has neither left nor been silent for long is unknown, or fenced; or its
                           heartbeats or commits are refused for an impossible epoch; or its join
    zombie                 a commit was done of a fenced member, with another epoch than the member's own, or of a
                           partition that another member had been given before
    no agreement           some time after all had become quiet, members at different epochs, or a partition without
                           exactly one owner

A member is one join: a second join under the same id makes another one. A member owns an assigned partition until it
says that it has given it up, even if it dies: the broker may give it to others when the session is over that began with
the last answered heartbeat, or when the time to give partitions up is over. A new broker gives all members a whole
session from its start on, as it does not know of later heartbeats. A member that joined again since its first join was
not answered owns nothing: the first join may arrive after the second, and then tells the broker, as it would Kafka,
that the member has nothing.

Times are seconds of the simulation. Lost and wrong offsets are found by `History`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs

Assigned = frozenset[int]  # partitions of the one topic that a group reads

CLOCK_SECONDS = 0.002  # the broker's deadlines are in whole milliseconds


@attrs.define(eq=False, kw_only=True)
class Membership:
    """One member, from its join until it leaves, dies or is fenced.

    `has` are its partitions; `lost` are those that have gone to others since its time was up.
    """

    member_id: str
    epoch: int = attrs.field(default=0, init=False)
    has: Assigned = attrs.field(default=frozenset(), init=False)
    target: Assigned = attrs.field(default=frozenset(), init=False)  # what it was told last that it is to have
    lost: dict[int, float] = attrs.field(factory=dict, init=False)  # with when that was known
    on_time_until: float = attrs.field(default=math.inf, init=False)
    gives_up_until: float = attrs.field(default=math.inf, init=False)
    unanswered: list[float] = attrs.field(factory=list, init=False)  # heartbeats since the last answer, as it began
    untold_until: float = attrs.field(default=math.inf, init=False)  # if one of these answers told it to give up
    fenced_at: float = attrs.field(default=math.inf, init=False)  # when it was told that it is none any more
    is_forgiven: bool = attrs.field(default=False, init=False)  # its epoch may be unknown
    joins_unanswered_count: int = attrs.field(default=0, init=False)

    @property
    def may_join_late(self) -> bool:
        """Tell whether a join of an earlier connection may still arrive, which says that the member has nothing."""
        return self.epoch > 0 and self.joins_unanswered_count > 0

    @property
    def safe_until(self) -> float:
        """Return the time before which the broker must not give the member's partitions to others."""
        if self.may_join_late:
            return -math.inf
        return min(self.on_time_until, self.gives_up_until, self.untold_until) - CLOCK_SECONDS


@attrs.define(eq=False, kw_only=True)
class MembersRecord(ABC):
    """A record of the members of one group. `note` gets each line of it, `now` is the time."""

    now: Callable[[], float]
    session_seconds: float
    rebalance_seconds: float
    note: Callable[[str], None] = lambda text: None
    problems: list[str] = attrs.field(factory=list, init=False)
    commits_count: int = attrs.field(default=0, init=False)  # that were done

    @abstractmethod
    def disagreement(self, members: Collection[Any], partitions: Sequence[int]) -> str:
        """Return on which partitions all members disagree; empty if each has one owner."""

    def did_not_agree(self, detail: str) -> None:
        self.problems.append(f"no agreement: {detail}")


@attrs.define(eq=False, kw_only=True)
class MembersSeen(MembersRecord):
    _members: list[Membership] = attrs.field(factory=list, init=False)  # that may have anything

    def joining(self, member_id: str) -> Membership:
        return Membership(member_id=member_id)

    def sending(self, member: Membership) -> float:
        """Record a heartbeat that is about to be sent; returns the time."""
        began = self.now()
        member.unanswered.append(began)
        member.joins_unanswered_count += member.epoch == 0
        member.untold_until = member.unanswered[0] + self.rebalance_seconds
        return began

    def answered(
        self, member: Membership, epoch: int, assigned: Assigned | None, *, began: float, is_known: bool = True
    ) -> None:
        """Record an accepted heartbeat that was sent at `began`, with the new assignment, if any.

        `is_known`: the answer came from the present coordinator. Another broker may not know of later answers.
        """
        self.note(f"member {member.member_id} at {epoch} {'as before' if assigned is None else sorted(assigned)}")
        if epoch < member.epoch and not member.is_forgiven:
            self._found("epoch went back", member, f"{epoch} after {member.epoch}")
        if member.lost and is_known:
            self._found("taken away unasked", member, f"{sorted(member.lost)}, and it is a member still")
            member.lost.clear()
        member.joins_unanswered_count -= member.epoch == 0
        member.epoch, member.is_forgiven = epoch, False
        if member not in self._members:
            self._members.append(member)
        if assigned is not None:
            member.target = assigned
        if not is_known:
            pass
        elif member.has <= member.target:  # and the broker has been told
            member.gives_up_until = math.inf
        elif member.gives_up_until == math.inf:
            member.gives_up_until = member.unanswered[0] + self.rebalance_seconds
        if assigned is not None:
            self._give(member, assigned)
            member.has |= assigned
        else:
            self._give(member, member.has)
        if not is_known:
            member.on_time_until = min(member.on_time_until, began)
            return
        member.on_time_until = began + self.session_seconds
        member.unanswered.clear()
        member.untold_until = math.inf

    def _give(self, member: Membership, assigned: Assigned) -> None:
        now = self.now()
        for other in self._members:
            if other is member or not (both := other.has & assigned):
                continue
            if now < other.safe_until:
                detail = f"{sorted(both)}, which {other.member_id} has until {other.safe_until:.3f} ({now:.3f} now)"
                self._found("two owners", member, detail)
            other.has -= both
            if not other.may_join_late:
                other.lost.update(dict.fromkeys(both, now))
        self._members = [
            other for other in self._members if other is member or other.has or other.lost or now < other.safe_until
        ]

    def gave_up(self, member: Membership, partitions: Assigned) -> None:
        self.note(f"member {member.member_id} gives up {sorted(partitions)}")
        member.has -= partitions

    def left(self, member: Membership) -> float:
        self.note(f"member {member.member_id} leaves")
        known_until = member.safe_until
        member.has, member.fenced_at = frozenset(), self.now()
        member.on_time_until = 0.0
        self._forget(member)
        return known_until

    def leave_refused(self, member: Membership, why: str, *, known_until: float) -> None:
        """Record that a static member was refused as it left, since another one has its place."""
        if self.now() < known_until:
            self._found("refused without cause", member, f"{why} as it leaves, on time until {known_until:.3f}")

    def refused(self, member: Membership, why: str, *, may_be_late: bool, is_known: bool = True) -> None:
        """Record a refused heartbeat: the member is unknown, or at another epoch (`may_be_late`).

        `is_known`: the answer came from the present coordinator. Another broker may not know of later answers.
        """
        self.note(f"member {member.member_id} is refused: {why}")
        # Two answers that got lost may have raised its epoch twice; or one, that also told it to give up more.
        is_late = may_be_late and len(member.unanswered) > (2 if member.gives_up_until == math.inf else 1)
        if not is_known:
            pass
        elif not member.epoch:
            self._found("refused without cause", member, f"{why} as it joins")
        elif self.now() < member.safe_until and not is_late:
            self._found("refused without cause", member, f"{why}, on time until {member.safe_until:.3f}")
        member.fenced_at = min(member.fenced_at, self.now())
        member.has = frozenset()
        member.lost.clear()
        member.on_time_until = 0.0
        self._forget(member)

    def refused_by_itself(self, member: Membership) -> None:
        self._found("refused without cause", member, "its own instance id is in use")

    def _forget(self, member: Membership) -> None:
        if member in self._members:
            self._members.remove(member)

    def committed(self, member: Membership, partition: int, *, epoch: int, began: float) -> None:
        """Record an accepted commit of this member and epoch, which was sent at `began`."""
        self.commits_count += 1
        if epoch < member.epoch:
            self._found("zombie", member, f"committed as at {epoch}, and was told {member.epoch} before")
        elif member.fenced_at < began:
            self._found("zombie", member, f"committed after it had left, or was told that it is fenced: {partition}")
        elif member.lost.get(partition, math.inf) < began:
            self._found("zombie", member, f"committed {partition}, which was somebody else's before")

    def commit_refused(self, member: Membership, why: str) -> None:
        """Record a refused commit, or request for offsets, of this member at its epoch."""
        if self.now() < member.safe_until and not member.unanswered:
            self._found("refused without cause", member, f"{why} for offsets, on time until {member.safe_until:.3f}")

    def began_anew(self, began: float) -> None:
        for member in self._members:
            member.on_time_until = min(member.on_time_until, began + self.session_seconds)

    def forgive(self) -> None:
        """Forgive the losses of a broker's disk: members have only partitions that they are given again."""
        for member in self._members:
            member.is_forgiven = True
            member.on_time_until = 0.0
            member.has = frozenset()
            member.lost.clear()

    def disagreement(self, members: Collection[Membership], partitions: Sequence[int]) -> str:
        epochs = {member.member_id: member.epoch for member in members}
        return f"epochs {epochs}" if len(set(epochs.values())) > 1 else wrong_owners(members, partitions)

    def _found(self, kind: str, member: Membership, detail: str) -> None:
        self.problems.append(f"{kind}: {member.member_id} of epoch {member.epoch} at {self.now():.3f}: {detail}")


def wrong_owners(members: Collection[Membership | Participant], partitions: Sequence[int]) -> str:
    owners: Mapping[int, list[str]] = {
        partition: [member.member_id for member in members if partition in member.has] for partition in partitions
    }
    wrong = {partition: found for partition, found in owners.items() if len(found) != 1}
    return f"owners {wrong}" if wrong else ""


def kinds(problems: Collection[str]) -> Iterator[str]:
    return (problem.partition(":")[0] for problem in problems)


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
class GenerationsSeen(MembersRecord):
    """A record of the members of a classic group, over moves of its coordinator.

    Members record every assignment with the leader's name for it, when they are about to join again, and their commits;
    `problems` are

        two owners             a partition of one generation given to two members; or given to one while another one of
                               an earlier generation had it, had not joined again, and was on time
        two assignments        a generation for which its members got parts of different assignments
        generation went back   an assignment of an earlier generation than somebody had before it was asked for
        refused without cause  a member that is on time is not known, or its generation is not the present one
        zombie                 a commit was done of a generation before one that somebody had before that was sent
        no agreement           some time after all had become quiet, members of different generations, a partition
                               without exactly one owner, or unread records

    An assignment is durable before anybody gets it, so all this holds over any coordinators. Joins and departures are
    not: where the coordinator moves, members may be back. A broker that answers and does not coordinate the group any
    more (`is_known` is False) may repeat earlier answers.
    """

    latest: int = attrs.field(default=NO_GENERATION, init=False)  # of which anybody has an assignment
    _authors: dict[int, str] = attrs.field(factory=dict, init=False)  # of each generation
    _owners: dict[tuple[int, int], str] = attrs.field(factory=dict, init=False)  # of a generation's partitions
    _holders: list[Participant] = attrs.field(factory=list, init=False)

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

    def committed(self, member: Participant, generation: int, *, latest_then: int) -> None:
        """Record a commit of this generation, which was sent when `latest` was `latest_then`."""
        self.commits_count += 1
        if generation < latest_then:
            self._found("zombie", member, f"committed as of {generation}, and {latest_then} was there before")

    def disagreement(self, members: Collection[Participant], partitions: Sequence[int]) -> str:
        generations = {member.member_id: member.generation for member in members}
        return f"generations {generations}" if len(set(generations.values())) > 1 else wrong_owners(members, partitions)

    def _found(self, kind: str, member: Participant, detail: str) -> None:
        who = f"{member.member_id} of generation {member.generation}"
        self.problems.append(f"{kind}: {who} at {self.now():.3f}: {detail}")
