"""The first page: brokers, topics, groups, and present problems."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from kafscale.client.admin import list_topics
from kafscale.client.brokers import list_brokers
from kafscale.client.groups import list_groups
from kafscale.console.pages.base import PageRequest, view


async def overview(page: PageRequest) -> Response:
    client = await page.client()
    brokers = await list_brokers(client)
    topics = await list_topics(client)
    groups = await list_groups(client)
    leaderless = sum(partition.leader_id < 0 for topic in topics for partition in topic.partitions)
    problems = [f"broker {broker.broker_id} is fenced" for broker in brokers if broker.is_fenced]
    if leaderless:
        problems.append(f"{leaderless} partitions have no leader")
    return page.render("overview.html", brokers=brokers, topics=topics, groups=groups, problems=problems)


ROUTES = [Route("/", view(overview))]
