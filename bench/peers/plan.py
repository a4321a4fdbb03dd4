"""The measurements of a run, their order, and how long that takes."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence

import attrs

from bench.options import RunOptions
from bench.peers.load import Load
from bench.peers.targets import Target

Key = tuple[str, str, int]  # load, broker, round


@attrs.frozen
class Turn:
    """One load against one broker in one round."""

    load: Load
    broker: str
    round: int

    @property
    def key(self) -> Key:
        return self.load.name, self.broker, self.round


def turns_of(
    loads: Sequence[Load], brokers: Sequence[str], rounds: int, pairs: Container[tuple[str, str]] | None = None
) -> Sequence[Turn]:
    """Round by round, load by load; the brokers take turns, and every other round in the opposite order.

    So a run that is cut has whole rounds, and no broker always follows the same one. `pairs`: only these loads and
    brokers.
    """
    return [
        Turn(load, broker, round)
        for round in range(rounds)
        for load in loads
        for broker in (brokers if round % 2 == 0 else reversed(brokers))
        if load.is_for(broker) and (pairs is None or (load.name, broker) in pairs)
    ]


def missing(turns: Sequence[Turn], done: Collection[Key]) -> Sequence[Turn]:
    """Return what is left to do of a run that was cut."""
    return [turn for turn in turns if turn.key not in done]


def pairs_of(targets: Sequence[Target], loads: Sequence[Load]) -> Collection[tuple[str, str]]:
    """The loads and brokers that targets compare, and those that such a load takes a share of."""
    by_name = {load.name: load for load in loads}
    pairs = {pair for target in targets for pair in target.pairs}
    return pairs | {shared for load, broker in pairs for shared in _shared(by_name[load], broker)}


def _shared(load: Load, broker: str) -> Iterator[tuple[str, str]]:
    if load.share_of is not None:
        name, only_broker = load.share_of
        yield name, only_broker or broker


def estimated_seconds(turns: Sequence[Turn], options: RunOptions) -> float:
    """Return how long these take, about."""
    return sum(turn.load.estimated_seconds(options) for turn in turns)
