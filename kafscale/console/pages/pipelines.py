"""Pipelines of `--pipeline`: lag, last commit and dead letters, from `kafscale pipeline status`."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route

from kafscale.console.pages.base import PageRequest, action, view
from kafscale.console.pages.bucket import missing_bucket_right
from kafscale.console.runs import Run

AGAIN_SECONDS = 30.0  # after which a page that is shown asks again


async def pipelines(page: PageRequest) -> Response:
    missing = await missing_bucket_right(page)
    return page.render("pipelines.html", missing=missing, runs=[] if missing else _looked(page))


async def state(page: PageRequest) -> Response:
    missing = await missing_bucket_right(page)
    return page.render("pipeline_states.html", runs=[] if missing else _looked(page))


async def look(page: PageRequest) -> Response:
    """Ask for all states again."""
    if not await missing_bucket_right(page):
        for file in page.settings.pipelines:
            _start(page, file)
    return page.redirect("/pipelines")


def _looked(page: PageRequest) -> list[Run]:
    """Return the command of each file; one that is over for AGAIN_SECONDS starts again, and its answer stays."""
    runs = []
    for file in page.settings.pipelines:
        run = page.session.runs.get(_name(file))
        if run is None or (run.is_over and run.age_seconds > AGAIN_SECONDS):
            run = _start(page, file, run)
        runs.append(run)
    return runs


def _start(page: PageRequest, file: Path, former: Run | None = None) -> Run:
    run = Run(["pipeline", "status", "--json", str(file)], label=str(file), former=former)
    page.console.start(page.session, _name(file), run)
    return run


def _name(file: Path) -> str:
    return f"pipeline {file}"


ROUTES = [
    Route("/pipelines", view(pipelines)),
    Route("/pipelines/state", view(state)),
    Route("/pipelines", action(look, changes=False), methods=["POST"]),
]
