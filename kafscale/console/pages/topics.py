"""Topics."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from kafscale.client.admin import list_topics
from kafscale.console.pages.base import PageRequest, view


async def topic_list(page: PageRequest) -> Response:
    topics = await list_topics(await page.client())
    return page.render("topics.html", topics=topics)


ROUTES = [Route("/topics", view(topic_list))]
