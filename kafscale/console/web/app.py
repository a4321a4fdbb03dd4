"""The application: routes of all pages, static files, and the checks in front of them."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from kafscale.console.guard import TOO_LARGE, BodyTooLarge, Guard
from kafscale.console.pages import (
    acls,
    brokers,
    bucket,
    group_reset,
    groups,
    login,
    messages,
    overview,
    pipelines,
    quotas,
    sql,
    topics,
    transactions,
    users,
)
from kafscale.console.pages.base import Console, PageRequest, view
from kafscale.console.settings import ConsoleSettings

CLUSTER_PAGES = (overview, topics, messages, groups, group_reset, transactions, brokers, users, acls, quotas)
PAGES = (login, *CLUSTER_PAGES, bucket, sql, pipelines)


def make_app(settings: ConsoleSettings) -> Starlette:
    static = Mount("/static", StaticFiles(packages=[("kafscale.console", "static")]), name="static")
    app = Starlette(
        routes=[static, *(route for page in PAGES for route in page.ROUTES)],
        middleware=[Middleware(Guard, settings.allowed_hosts)],
        exception_handlers={404: _not_found, BodyTooLarge: _too_large},
    )
    app.state.console = Console(settings)
    return app


async def _not_found(request: Request, _exc: Exception) -> Response:
    return await view(_missing)(request)


async def _missing(page: PageRequest) -> Response:
    return page.render("error.html", status=404, title="There is no such page", message=page.request.url.path)


async def _too_large(_request: Request, _exc: Exception) -> Response:
    return PlainTextResponse(TOO_LARGE, 413)
