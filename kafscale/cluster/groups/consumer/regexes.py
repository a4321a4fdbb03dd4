"""Subscriptions by regular expression: the broker finds the topics, so that all members see the same ones.

A heartbeat asks for a search by a `RegexRefresh`; the coordinator runs a `Search` piece by piece, since many topics
would block the event loop. With an authorizer an expression finds the topics that all of its members' clients may
describe (in Kafka, the member whose heartbeat asks). It is searched again when rights have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from kafscale.cluster.groups.common.context import (
    REGEX_REFRESH_MIN_INTERVAL_MS,
    REGEXES_MAX_COUNT,
    EventRefused,
    RegexRefresh,
)
from kafscale.cluster.groups.common.log_records import CoordinatorRecord
from kafscale.cluster.groups.common.patterns import InvalidPattern, Pattern, Piece, compile_pattern
from kafscale.cluster.groups.consumer.deciding import Deciding
from kafscale.cluster.groups.consumer.members import JOIN_EPOCH, Member, TopicSubscription
from kafscale.cluster.groups.consumer.state import GroupState, ResolvedRegex, regex_record
from kafscale.wire import error_codes
from kafscale.wire.internal_topics.consumer_offsets import ConsumerGroupRegularExpressionKey

SEARCH_PIECE_COUNT = 256  # questions for rights between two pieces of a search
KNOWN_MATCHES_MAX_COUNT = 200_000  # names of topics, each counted for each expression: some 20 MB


def check_regex(state: GroupState, subscription: TopicSubscription) -> None:
    """Raise EventRefused for a new expression that is not valid, or one too many."""
    regex = subscription.topic_regex
    if not regex or regex in state.regex_counts:
        return
    if len(state.regex_counts) >= REGEXES_MAX_COUNT:
        raise EventRefused(
            error_codes.INVALID_REQUEST,
            f"The group's members have {REGEXES_MAX_COUNT} different regular expressions already, as many as are "
            "allowed. Subscribe by one of those, or by names of topics.",
        )
    try:
        compile_pattern(regex)
    except InvalidPattern as exc:
        raise EventRefused(
            error_codes.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {exc}.",
        ) from exc


@attrs.define(eq=False, repr=False)
class KnownMatches:
    """The names of topics that each expression is known to match or not, for all groups."""

    max_count: int = KNOWN_MATCHES_MAX_COUNT
    _by_regex: dict[str, dict[str, bool]] = attrs.field(factory=dict, init=False)  # the one used last at the end
    _count: int = attrs.field(default=0, init=False)

    def of(self, regex: str) -> Mapping[str, bool]:
        known = self._by_regex[regex] = self._by_regex.pop(regex, {})
        return known

    def put(self, regex: str, names: Collection[str], matched: Collection[str]) -> None:
        """Remember which of these names the expression matches."""
        known = self._by_regex.setdefault(regex, {})
        before = len(known)
        known.update({name: name in matched for name in names})
        self._count += len(known) - before
        while self._count > self.max_count:
            self._count -= len(self._by_regex.pop(next(iter(self._by_regex))))


@attrs.define(eq=False, repr=False)
class Search:
    """A search for a group's expressions in these names of topics; `found` is complete when `pieces` has ended.

    `may_describe` tells by client and topic which topics may be found; it is asked before they are matched.
    """

    refresh: RegexRefresh
    names: Sequence[str]
    known: KnownMatches = attrs.field(factory=KnownMatches)
    may_describe: Callable[[Any, str], bool] = lambda _viewer, _topic: True
    found: dict[str, frozenset[str]] = attrs.field(factory=dict, init=False)
    _regex: str = attrs.field(default="", init=False)

    def pieces(self) -> Iterator[Piece]:
        """Yield pieces of some milliseconds; the caller runs, and then learns, each before the next one."""
        for regex, viewers in self.refresh.viewers.items():
            try:
                pattern = compile_pattern(regex)
            except InvalidPattern:
                continue  # an earlier version took it; it keeps its topics
            topics: set[str] = set()
            for names in self._visible(viewers, pattern):
                known = self.known.of(regex)
                piece = Piece(pattern, [name for name in names if name not in known])
                self._regex = regex
                yield piece
                topics.update(piece.matched, (name for name in names if known.get(name)))
            self.found[regex] = frozenset(topics)

    def learn(self, piece: Piece) -> None:
        """Remember the matches of a piece that has been run, for other groups."""
        self.known.put(self._regex, piece.names, piece.matched)

    def _visible(self, viewers: Collection[Hashable], pattern: Pattern) -> Iterator[Sequence[str]]:
        count = min(pattern.piece_count, max(1, SEARCH_PIECE_COUNT // max(1, len(viewers))))
        for start in range(0, len(self.names), count):
            names = self.names[start : start + count]
            yield [name for name in names if all(self.may_describe(viewer, name) for viewer in viewers)]


def regex_left(deciding: Deciding, before: TopicSubscription, member: Member) -> bool:
    """Forget an expression that no member has any more; tell whether the topics of the member have changed already.

    They have if the new expression was searched for another member before, or if there is no new one. (Kafka does not
    raise the epoch in the latter case, and the member keeps partitions that it does not want.)
    """
    after = member.subscription
    if before.topic_regex == after.topic_regex:
        return False
    if not after.topic_regex:
        deciding.soft.viewers.remove(member.member_id)
    was_resolved = before.topic_regex in deciding.state.regexes
    delete_unsubscribed(deciding)
    return after.topic_regex in deciding.state.regexes if after.topic_regex else was_resolved


def note_viewer(deciding: Deciding, before: Member, after: Member, viewer: Hashable) -> None:
    """Note the client of a member that subscribes by an expression: its rights count."""
    regex = after.subscription.topic_regex
    if deciding.context.rights is not None and regex:
        is_known = before.member_epoch != JOIN_EPOCH and before.subscription.topic_regex == regex
        deciding.soft.viewers.put(after.member_id, regex, viewer, is_known=is_known)


def delete_unsubscribed(deciding: Deciding) -> None:
    """Delete the topics of expressions that no member has any more."""
    for regex in [regex for regex in deciding.state.regexes if regex not in deciding.state.regex_counts]:
        deciding.write(CoordinatorRecord(ConsumerGroupRegularExpressionKey(deciding.state.group_id, regex), None))


def begin_refresh(deciding: Deciding, asker: Hashable = None) -> RegexRefresh | None:
    """Return the search that is due now, if any: for new expressions, new topics, other rights, or after a while."""
    state, soft = deciding.state, deciding.soft
    if not state.regex_counts or soft.refreshing is not None:
        return None
    last_ms = max((resolved.timestamp_ms for resolved in state.regexes.values()), default=None)
    if last_ms is not None and deciding.now_ms <= last_ms + REGEX_REFRESH_MIN_INTERVAL_MS:
        return None
    is_old = (
        last_ms is None
        or deciding.now_ms > last_ms + deciding.settings.coordinator.group_consumer_regex_refresh_interval_ms
    )
    rights = deciding.context.rights
    refresh = RegexRefresh(
        viewers=_viewers(deciding),
        asker=asker,
        version=deciding.topics.version,
        rights_version=0 if rights is None else rights.version,
    )
    if is_old or any(_is_due(deciding, refresh, regex) for regex in refresh.viewers):
        soft.refreshing = refresh
    return soft.refreshing


def _viewers(deciding: Deciding) -> dict[str, frozenset[Hashable]]:
    """Return the clients of each expression whose members have all sent a heartbeat since the start."""
    counts = deciding.state.regex_counts
    if deciding.context.rights is None:
        return dict.fromkeys(counts, frozenset())
    known = {regex: deciding.soft.viewers.of(regex, count) for regex, count in counts.items()}
    return {regex: viewers for regex, viewers in known.items() if viewers is not None}


def _is_due(deciding: Deciding, refresh: RegexRefresh, regex: str) -> bool:
    resolved = deciding.state.regexes.get(regex)
    if resolved is None or resolved.version < deciding.topics.created_version:
        return True
    if deciding.context.rights is None:
        return False
    return not deciding.soft.viewers.is_searched(regex, refresh.viewers[regex], refresh.rights_version)


def end_refresh(deciding: Deciding, found: Mapping[str, frozenset[str]], version: int) -> None:
    """Take over found topics; if some are new, the next heartbeat computes another target assignment."""
    state, refresh = deciding.state, deciding.soft.refreshing
    deciding.soft.refreshing = None
    has_new_topics = refresh is not None and deciding.soft.viewers.note_searched(
        {regex: refresh.viewers[regex] for regex in found}, refresh.rights_version
    )
    for regex in sorted(state.regex_counts.keys() & found.keys()):
        before = state.regexes.get(regex)
        has_new_topics |= found[regex] != (frozenset() if before is None else before.topics)
        resolved = ResolvedRegex(topics=found[regex], version=version, timestamp_ms=deciding.now_ms)
        deciding.write(regex_record(state.group_id, regex, resolved))
    delete_unsubscribed(deciding)
    if has_new_topics:
        deciding.raise_epoch()
