"""The bucket: size, age and cost by topic, what a broker has not flushed yet, and the check of all objects.

Numbers come from `kafscale storage` and `kafscale verify`, which read the bucket in processes of their own.
"""

from __future__ import annotations

import attrs
from starlette.responses import Response
from starlette.routing import Route

from kafscale.client.brokers import cluster_operations
from kafscale.config import BUCKET_OPTIONS, flags_of
from kafscale.console.admin_metrics import read_metrics
from kafscale.console.pages.base import PageRequest, action, view
from kafscale.console.rights import missing_right
from kafscale.console.runs import Run
from kafscale.errors import BrokerUnavailable
from kafscale.security.acls import AclOperation

USAGE, CHECK = "usage", "check"  # names of the page's commands


@attrs.frozen(kw_only=True)
class Unflushed:
    """Acknowledged records that are not in the bucket yet: age of the oldest, and bytes in memory."""

    age_seconds: float | None
    chunk_pool_bytes: float | None


async def missing_bucket_right(page: PageRequest) -> str:
    """Return the ACL that a user of the bucket's pages lacks: the bucket has all topics. Raises as `client`."""
    operations = await cluster_operations(await page.client())
    return missing_right(operations, AclOperation.ALTER, "the cluster: the bucket has the records of all topics")


async def bucket(page: PageRequest) -> Response:
    if page.settings.bucket is None:
        return page.render("no_bucket.html", title="Bucket")
    missing = await missing_bucket_right(page)
    runs = page.session.runs
    if not missing and USAGE not in runs:
        _measure(page)
    return page.render(
        "bucket.html",
        missing=missing,
        store=str(page.settings.bucket.store),
        usage=runs.get(USAGE),
        check=runs.get(CHECK),
        unflushed=await _unflushed(page),
    )


async def usage(page: PageRequest) -> Response:
    return page.render("bucket_usage.html", usage=page.session.runs.get(USAGE))


async def check(page: PageRequest) -> Response:
    return page.render("bucket_check.html", check=page.session.runs.get(CHECK))


async def measure(page: PageRequest) -> Response:
    """Measure the bucket again."""
    if not await missing_bucket_right(page):
        _measure(page)
    return page.redirect("/bucket")


async def verify(page: PageRequest) -> Response:
    """Begin the check of all objects."""
    assert page.settings.bucket is not None
    if not await missing_bucket_right(page):
        arguments = ["verify", "--json", "--bucket-only", *flags_of(page.settings.bucket, BUCKET_OPTIONS)]
        page.console.start(page.session, CHECK, Run(arguments))
    return page.redirect("/bucket")


async def cancel(page: PageRequest) -> Response:
    """Cancel the check."""
    if CHECK in page.session.runs:
        page.session.runs[CHECK].cancel()
    return page.redirect("/bucket", "The check was cancelled.")


def _measure(page: PageRequest) -> None:
    assert page.settings.bucket is not None
    run = Run(["storage", "--json", *flags_of(page.settings.bucket, BUCKET_OPTIONS)])
    page.console.start(page.session, USAGE, run)


async def _unflushed(page: PageRequest) -> Unflushed | None:
    """Read the admin server's metrics; None without one that answers."""
    if page.settings.admin is None:
        return None
    try:
        values = await read_metrics(page.settings.admin, page.settings.admin_token)
    except BrokerUnavailable:
        return None
    return Unflushed(
        age_seconds=values.get("kafscale_flush_age_seconds"),
        chunk_pool_bytes=values.get("kafscale_pool_used_bytes"),
    )


ROUTES = [
    Route("/bucket", view(bucket)),
    Route("/bucket/usage", view(usage)),
    Route("/bucket/check", view(check)),
    Route("/bucket/measure", action(measure, changes=False), methods=["POST"]),
    Route("/bucket/verify", action(verify, changes=False), methods=["POST"]),
    Route("/bucket/cancel", action(cancel, changes=False), methods=["POST"]),
]
