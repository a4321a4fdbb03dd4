"""Topics that another broker has created lately: known here half a second later, or as soon as somebody asks for them.

Whoever has created a topic by one broker may ask the next one about it. Metadata asks here first, and so does what
administrators change; of a Produce, a Fetch or the like clients try again by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import Turns


async def know_topics(services: Services, names: Iterable[str] = (), topic_ids: Iterable[bytes] = ()) -> None:
    """Catch up with the other brokers if there is a topic among these, by name or id, that is not known here."""
    topics = services.topics
    found = chain((topics.get(each) for each in names), (topics.by_id(each) for each in topic_ids))
    await catch_up_if_any(services, (each is None for each in found))


async def catch_up_if_any(services: Services, unknown: Iterable[bool]) -> None:
    """Catch up with the other brokers if there is something among these that is not known here."""
    turns = Turns()
    for each in unknown:
        await turns.step()
        if each:
            await services.catch_up()
            return
