"""Log in as a user of the cluster (PLAIN, SCRAM or OAUTHBEARER), and log out."""

from __future__ import annotations

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from kafscale.config import SaslMechanism
from kafscale.console.cluster import ClusterAccess
from kafscale.console.pages.base import Console, PageRequest, action, remember
from kafscale.console.rendering import render
from kafscale.errors import KafScaleError
from kafscale.login.sasl import ClientSasl
from kafscale.login.tokens import GivenToken


async def form(request: Request) -> Response:
    """Show the form, or lead to the overview where no login is needed."""
    console: Console = request.app.state.console
    return _form(console) if console.settings.security.needs_login else RedirectResponse("/", 303)


async def log_in(request: Request) -> Response:
    """Connect with the user's credentials, and begin a session if the broker takes them."""
    console: Console = request.app.state.console
    given = await request.form()
    try:
        sasl = _credentials(given)
        cluster = ClusterAccess(console.settings.bootstrap, console.settings.security.of(sasl))
        await cluster.client()
    except (KafScaleError, ValueError) as exc:
        return _form(console, str(exc), 403)
    session = await console.begin(cluster, sasl.username or "token")
    response = RedirectResponse("/", 303)
    remember(response, request, session)
    return response


def _credentials(given: FormData) -> ClientSasl:
    """Read the form. Raises ValueError."""
    mechanism = SaslMechanism(str(given.get("mechanism", "")))
    if mechanism is SaslMechanism.OAUTHBEARER:
        token = str(given.get("token", "")).strip()
        if not token:
            raise ValueError("Paste an access token.")
        return ClientSasl(mechanism=mechanism, tokens=GivenToken(token))
    user, password = str(given.get("user", "")), str(given.get("password", ""))
    if not user or not password:
        raise ValueError("Enter a user and a password.")
    return ClientSasl(mechanism=mechanism, username=user, password=password)


def _form(console: Console, failure: str = "", status: int = 200) -> HTMLResponse:
    return HTMLResponse(render("login.html", mechanisms=console.settings.security.mechanisms, failure=failure), status)


async def log_out(page: PageRequest) -> Response:
    await page.console.end(page.session)
    return RedirectResponse("/login", 303)


ROUTES = [
    Route("/login", form),
    Route("/login", log_in, methods=["POST"]),
    Route("/logout", action(log_out), methods=["POST"]),
]
