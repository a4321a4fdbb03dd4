"""Common parts of pages: the session, forms, errors and the navigation.

A handler takes a `PageRequest` and returns a response. `view` makes it an endpoint that reads; `action` makes it one
that changes something: it needs POST and the session's form token, and is refused by `--read-only`.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import attrs
import trio
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kafscale.client.client import Client
from kafscale.console.cluster import ClusterAccess
from kafscale.console.messages.showing import Shower
from kafscale.console.rendering import render
from kafscale.console.runs import RUNS_MAX_COUNT, Run
from kafscale.console.sampling import ClusterSamples, Sampling
from kafscale.console.sessions import Session, Sessions
from kafscale.console.settings import ConsoleSettings
from kafscale.errors import BrokerUnavailable, KafkaError, KafScaleError
from kafscale.wire import error_codes

COOKIE = "kafscale-console"
NOTICE_MAX_COUNT = 500  # characters
NAVIGATION = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/transactions", "Transactions"),
    ("/brokers", "Brokers"),
    ("/bucket", "Bucket"),
    ("/sql", "SQL"),
    ("/pipelines", "Pipelines"),
    ("/users", "Users"),
    ("/acls", "ACLs"),
    ("/quotas", "Quotas"),
)
MISSING_CODES = (
    error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    error_codes.GROUP_ID_NOT_FOUND,
    error_codes.TRANSACTIONAL_ID_NOT_FOUND,
    error_codes.BROKER_ID_NOT_REGISTERED,
)
LOGIN_CODES = (error_codes.SASL_AUTHENTICATION_FAILED, error_codes.ILLEGAL_SASL_STATE)


@attrs.define(eq=False, repr=False)
class Console:
    """State of the process. `shared` is the cluster of all sessions where the broker wants no login."""

    settings: ConsoleSettings
    sessions: Sessions = attrs.field(factory=Sessions)
    shared: ClusterAccess = attrs.field(init=False)
    shower: Shower = attrs.field(init=False)
    tasks: trio.Nursery = attrs.field(init=False)  # set while the console serves
    _runs_limit: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(RUNS_MAX_COUNT), init=False)
    sampling: Sampling = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.shared = ClusterAccess(self.settings.bootstrap, self.settings.security.of(None))
        self.sampling = Sampling(self.shared, self.settings.security.needs_login)
        self.shower = Shower(self.settings.registry)

    async def begin(self, cluster: ClusterAccess, user: str | None = None) -> Session:
        """Begin a session, and close the clusters of expired ones."""
        session, over = self.sessions.begin(cluster, user)
        for ended in over:
            await self._close(ended)
        return session

    async def end(self, session: Session) -> None:
        self.sessions.end(session)
        await self._close(session)

    async def aclose(self) -> None:
        for session in self.sessions.all:
            await self.end(session)
        await self.shared.aclose()
        self.shower.close()

    def start(self, session: Session, page: str, run: Run) -> None:
        """Start a command for a page, and cancel the page's last one."""
        if page in session.runs:
            session.runs[page].cancel()
        session.runs[page] = run
        self.tasks.start_soon(run.run, self._runs_limit)

    async def _close(self, session: Session) -> None:
        for run in session.runs.values():
            run.cancel()
        if session.cluster is not self.shared:
            self.sampling.forget(session.cluster)
            await session.cluster.aclose()


@attrs.define(eq=False, repr=False)
class PageRequest:
    """One request of a session. `form` is empty for a view."""

    request: Request
    console: Console
    session: Session
    form: FormData = attrs.field(factory=FormData)

    @property
    def settings(self) -> ConsoleSettings:
        return self.console.settings

    async def client(self) -> Client:
        """Return the user's client. Raises BrokerUnavailable, KafkaError."""
        return await self.session.cluster.client()

    @property
    def samples(self) -> ClusterSamples:
        """Return the samples of the user's cluster, which is sampled from now on."""
        return self.console.sampling.of(self.session.cluster)

    @property
    def is_fragment(self) -> bool:
        """Tell whether console.js reloads a part of the page."""
        return "x-fragment" in self.request.headers

    def argument(self, name: str, default: str = "") -> str:
        """Return a query parameter."""
        return self.request.query_params.get(name, default)

    def render(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Render a template of a whole page or of a fragment that a page reloads."""
        return HTMLResponse(render(template, page=self, **values), status)

    def redirect(self, path: str, notice: str = "") -> RedirectResponse:
        """Lead to another page after an action; it shows `notice`."""
        self.session.notice = notice[:NOTICE_MAX_COUNT]
        return RedirectResponse(path, 303)

    @property
    def again(self) -> str:
        """Return the quoted path of this page, or after an action that of the page with its form."""
        path = self.request.url.path
        if self.request.method not in ("GET", "HEAD"):
            path = unquote(urlsplit(self.request.headers.get("referer", "")).path)
        return "/" + quote(path.lstrip("/"))

    def take_notice(self) -> str:
        notice, self.session.notice = self.session.notice, ""
        return notice

    @property
    def navigation(self) -> list[tuple[str, str, bool]]:
        """Paths, names, and whether the page is of that part."""
        path = self.request.url.path
        return [
            (target, name, path == target or (target != "/" and path.startswith(f"{target}/")))
            for target, name in NAVIGATION
        ]


Handler = Callable[[PageRequest], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


def view(handler: Handler) -> Endpoint:
    """Make an endpoint of a handler that only reads."""

    async def endpoint(request: Request) -> Response:
        console: Console = request.app.state.console
        session = console.sessions.find(request.cookies.get(COOKIE))
        if session is None and console.settings.security.needs_login:
            return RedirectResponse("/login", 303)
        if session is not None:
            return await _handle(handler, PageRequest(request, console, session))
        session = await console.begin(console.shared)
        response = await _handle(handler, PageRequest(request, console, session))
        remember(response, request, session)
        return response

    return endpoint


def action(handler: Handler, *, changes: bool = True) -> Endpoint:
    """Make an endpoint for POST. `--read-only` refuses it, unless it only begins or ends reading."""

    async def endpoint(request: Request) -> Response:
        console: Console = request.app.state.console
        session = console.sessions.find(request.cookies.get(COOKIE))
        if session is None:
            return RedirectResponse("/login" if console.settings.security.needs_login else "/", 303)
        page = PageRequest(request, console, session, await request.form())
        if not hmac.compare_digest(str(page.form.get("csrf_token", "")).encode(), session.csrf_token.encode()):
            return page.render(
                "error.html", status=403, title="This form has expired", message="Reload it and try again."
            )
        if changes and console.settings.is_read_only:
            message = "The console was started with --read-only."
            return page.render("error.html", status=403, title="Nothing was changed", message=message)
        return await _handle(handler, page)

    return endpoint


def remember(response: Response, request: Request, session: Session) -> None:
    """Set the cookie of a session."""
    is_secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, session.token, httponly=True, samesite="strict", secure=is_secure, path="/")


async def _handle(handler: Handler, page: PageRequest) -> Response:
    try:
        return await handler(page)
    except BrokerUnavailable as exc:
        return page.render("error.html", status=503, title="The cluster does not answer", message=str(exc))
    except KafkaError as exc:
        if exc.code in LOGIN_CODES and page.session.user is not None:
            await page.console.end(page.session)
            return RedirectResponse("/login", 303)
        status = 404 if exc.code in MISSING_CODES else 400
        return page.render("error.html", status=status, title="The cluster refused this", message=str(exc))
    except KafScaleError as exc:
        return page.render("error.html", status=400, title="This failed", message=str(exc))
