"""SQL: a statement on the bucket's topics, answered by `kafscale sql` with the embedded engine.

That engine reads no files but the bucket's, so a statement cannot read the machine of the console.
"""

from __future__ import annotations

from typing import Any

import attrs
from starlette.responses import Response
from starlette.routing import Route

from kafscale.config import BUCKET_OPTIONS, flags_of
from kafscale.console.charts import Chart, chart_of
from kafscale.console.pages.base import PageRequest, action, view
from kafscale.console.pages.bucket import missing_bucket_right
from kafscale.console.runs import Run, RunState

QUERY = "sql"  # name of the page's command
STATEMENT_MAX_COUNT = 20_000  # characters
ROWS_MAX_COUNT = 1_000
EXAMPLE = "SELECT partition, count(*) AS records FROM TOPIC GROUP BY partition ORDER BY partition"


@attrs.frozen(kw_only=True)
class Answer:
    """Rows of a statement. `more_count` rows are not shown; `is_cut`: even more were not read."""

    columns: list[str]
    rows: list[list[Any]]
    more_count: int
    is_cut: bool
    chart: Chart | None

    @classmethod
    def of(cls, run: Run) -> Answer:
        """Read the output of a command. Raises ValueError."""
        documents = run.rows()
        columns = list(documents[0]) if documents else []
        rows = [[document.get(column) for column in columns] for document in documents[:ROWS_MAX_COUNT]]
        more_count = max(0, len(documents) - ROWS_MAX_COUNT)
        return cls(columns=columns, rows=rows, more_count=more_count, is_cut=run.is_cut, chart=chart_of(columns, rows))


async def query(page: PageRequest) -> Response:
    if page.settings.bucket is None:
        return page.render("no_bucket.html", title="SQL")
    run = page.session.runs.get(QUERY)
    statement = page.argument("statement") or (run.label if run is not None else EXAMPLE)
    missing = await missing_bucket_right(page)
    return page.render("sql.html", missing=missing, statement=statement, **_answer(run))


async def result(page: PageRequest) -> Response:
    return page.render("sql_result.html", **_answer(page.session.runs.get(QUERY)))


async def execute(page: PageRequest) -> Response:
    """Begin a statement."""
    assert page.settings.bucket is not None
    statement = str(page.form.get("statement", ""))[:STATEMENT_MAX_COUNT].strip()
    if statement and not await missing_bucket_right(page):
        flags = ["--engine", "duckdb", "--json", *flags_of(page.settings.bucket, BUCKET_OPTIONS)]
        page.console.start(page.session, QUERY, Run(["sql", "query", *flags, "--", statement], label=statement))
    return page.redirect("/sql")


async def cancel(page: PageRequest) -> Response:
    """Cancel the statement."""
    if QUERY in page.session.runs:
        page.session.runs[QUERY].cancel()
    return page.redirect("/sql")


def _answer(run: Run | None) -> dict[str, Any]:
    if run is None or run.state is not RunState.DONE:
        return {"run": run, "answer": None, "failure": ""}
    try:
        return {"run": run, "answer": Answer.of(run), "failure": ""}
    except ValueError as exc:
        return {"run": run, "answer": None, "failure": f"the answer cannot be read: {exc}"}


ROUTES = [
    Route("/sql", view(query)),
    Route("/sql", action(execute, changes=False), methods=["POST"]),
    Route("/sql/result", view(result)),
    Route("/sql/cancel", action(cancel, changes=False), methods=["POST"]),
]
