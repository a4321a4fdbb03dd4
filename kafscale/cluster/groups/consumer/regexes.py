"""Subscriptions by regular expression: the broker looks for the topics, so that all members see the same ones.

The syntax is RE2's, as in Kafka, whose re2j is a port of it. The engine is RE2 itself (`google-re2`, maintained beside
it, with wheels for every supported Python): it has no backtracking, takes time linear in expression times name, and
memory up to a bound that is given to it, past which it refuses an expression. Python's own `re` has neither: `(a+)+$`
would stop the broker.

Looking through many topics is not for the event loop: a heartbeat asks for it by a `RegexRefresh`, somebody calls
`search` piece by piece, in a thread (RE2 lets go of the interpreter while it matches) or between other work, and hands
what it found to the group. One name may take an expression of the largest size some milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kafscale.cluster.groups.consumer.deciding import Deciding
from kafscale.cluster.groups.consumer.events import Refused, RegexRefresh
from kafscale.cluster.groups.consumer.members import Subscription
from kafscale.cluster.groups.consumer.records import ConsumerGroupRegularExpressionKey, CoordinatorRecord
from kafscale.cluster.groups.consumer.settings import REGEX_MAX_COUNT, REGEX_REFRESH_MIN_INTERVAL_MS
from kafscale.cluster.groups.consumer.state import GroupState, ResolvedRegex, regex_record
from kafscale.wire import error_codes

# For the program and the automaton of one expression. RE2's own default is 8 MiB; 128 expressions are kept compiled.
REGEX_MEMORY_BYTES = 1 << 20
# Names that are looked at in one step of a search; an expression takes about 5 us for each.
SEARCH_PIECE_COUNT = 128


def compile_regex(regex: str) -> Any:
    """Return a compiled expression. Raises Refused for one that is not RE2's syntax or too large."""
    import re2  # on the first regular expression: most brokers never see one

    if len(regex) > REGEX_MAX_COUNT:
        raise Refused(
            error_codes.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex has {len(regex)} characters; {REGEX_MAX_COUNT} are allowed.",
        )
    options = re2.Options()
    options.max_mem = REGEX_MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(regex, options)
    except re2.error as exc:
        reason = exc.args[0].decode(errors="replace") if exc.args and isinstance(exc.args[0], bytes) else str(exc)
        raise Refused(
            error_codes.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}.",
        ) from exc


def check_regex(state: GroupState, subscription: Subscription) -> None:
    """Raise Refused for an expression that the group does not have yet and that is not valid."""
    regex = subscription.topic_regex
    if regex and regex not in state.regex_counts:
        compile_regex(regex)


def search(
    refresh: RegexRefresh, names: Sequence[str], is_visible: Callable[[str], bool] = lambda _: True
) -> Iterator[Mapping[str, frozenset[str]] | None]:
    """Look for expressions in these topic names: None after each piece of them, and at last what was found for each.

    `is_visible` says which topics the member that asked may describe.
    """
    found: dict[str, set[str]] = {regex: set() for regex in refresh.regexes}
    matchers = []
    for regex in refresh.regexes:
        try:
            matchers.append((compile_regex(regex).fullmatch, found[regex]))
        except Refused:
            continue  # it was valid when it was told; a later version of RE2 may see that otherwise
    for start in range(0, len(names), SEARCH_PIECE_COUNT):
        for name in names[start : start + SEARCH_PIECE_COUNT]:
            for matches, topics in matchers:
                if matches(name) and is_visible(name):
                    topics.add(name)
        yield None
    yield {regex: frozenset(topics) for regex, topics in found.items()}


def regex_left(deciding: Deciding, before: Subscription, after: Subscription) -> bool:
    """Forget an expression that nobody has any more; tell whether what the member is to read is another thing already.

    It is where the new expression has been looked for already, for another member, or where there is no new one. (Kafka
    does not raise the epoch in the latter case, and the member keeps partitions that it does not want.)
    """
    if before.topic_regex == after.topic_regex:
        return False
    was_resolved = before.topic_regex in deciding.state.regexes
    delete_unsubscribed(deciding)
    return after.topic_regex in deciding.state.regexes if after.topic_regex else was_resolved


def delete_unsubscribed(deciding: Deciding) -> None:
    """Forget what expressions have found that no member has any more."""
    for regex in [regex for regex in deciding.state.regexes if regex not in deciding.state.regex_counts]:
        deciding.write(CoordinatorRecord(ConsumerGroupRegularExpressionKey(deciding.state.group_id, regex), None))


def begin_refresh(deciding: Deciding) -> RegexRefresh | None:
    """Return what has to be looked for now, if anything: new expressions, new topics, or what is old."""
    state, soft = deciding.state, deciding.soft
    if not state.regex_counts or soft.refreshing is not None:
        return None
    resolved = state.regexes.values()
    if resolved:
        last_ms = max(each.timestamp_ms for each in resolved)
        if deciding.now_ms <= last_ms + REGEX_REFRESH_MIN_INTERVAL_MS:
            return None
        is_old = deciding.now_ms > last_ms + deciding.settings.regex_refresh_interval_ms
        has_new_topics = min(each.version for each in resolved) < deciding.topics.created_version
        if state.regex_counts.keys() == state.regexes.keys() and not has_new_topics and not is_old:
            return None
    soft.refreshing = RegexRefresh(regexes=frozenset(state.regex_counts), version=deciding.topics.version)
    return soft.refreshing


def end_refresh(deciding: Deciding, found: Mapping[str, frozenset[str]], version: int) -> None:
    """Take over what was found; the next heartbeat computes another target assignment if it is something new."""
    state = deciding.state
    deciding.soft.refreshing = None
    has_new_topics = False
    for regex in sorted(state.regex_counts.keys() & found.keys()):
        before = state.regexes.get(regex)
        has_new_topics |= found[regex] != (frozenset() if before is None else before.topics)
        resolved = ResolvedRegex(topics=found[regex], version=version, timestamp_ms=deciding.now_ms)
        deciding.write(regex_record(state.group_id, regex, resolved))
    delete_unsubscribed(deciding)
    if has_new_topics:
        deciding.raise_epoch()
