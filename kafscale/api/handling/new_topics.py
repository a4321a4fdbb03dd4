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
    topics, turns = services.topics, Turns()
    for found in chain((topics.get(each) for each in names), (topics.by_id(each) for each in topic_ids)):
        await turns.step()
        if found is None:
            await services.catch_up()
            return
