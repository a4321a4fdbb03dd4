"""The page for operators has every option and every metric of the store, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafscale.config import Settings, options
from kafscale.config.values import StoreUrl
from kafscale.metrics import Metrics
from kafscale.store.opening.opening import open_store
from kafscale.store.wrappers.limiter import POLICIES, WorkClass
from tests.devtools.fakes.s3_server import CREDENTIALS, open_s3_server

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()

STORE_OPTIONS = [each for each in options() if each.name.startswith(("s3-", "store"))]


@pytest.mark.parametrize("option", STORE_OPTIONS, ids=lambda option: option.name)
def test_every_option_of_the_store_has_a_row(option) -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| `{option.flag}` |")]
    assert len(row.split("|")[2].split()) >= 2, "says nothing"


def test_the_switch_is_named_in_both_forms() -> None:
    switch = next(store_option for store_option in STORE_OPTIONS if store_option.attribute == "s3_concurrency")
    assert f"## The switch: `{switch.flag}`, `{switch.variable}`" in PAGE
    assert f"Default {Settings().s3_concurrency};" in PAGE


def test_no_option_is_named_that_there_is_not() -> None:
    ours = re.sub(r"\]\(\S*\)", "", PAGE)  # an anchor may hold a flag
    assert set(re.findall(r"--[a-z][a-z0-9-]+", ours)) <= {option.flag for option in options()}


async def test_every_store_metric_is_documented_with_its_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret_access_key)
    metrics = Metrics()
    async with open_s3_server() as server:
        store = StoreUrl(scheme="s3", bucket="bucket")
        settings = Settings(store=store, s3_endpoint=server.endpoint, s3_region="us-east-1", s3_create_bucket=True)
        await (await open_store(settings, metrics)).aclose()
    registered = {
        name + (f"{{{','.join(family.labels)}}}" if family.labels else "")
        for name, family in metrics.families.items()
        if name.startswith("kafscale_store_")
    }
    rows = {line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `kafscale_store_")}
    assert rows == registered
    named = {re.sub(r"\{.*", "", each) for each in registered}
    assert set(re.findall(r"kafscale_store_[a-z_]+", PAGE)) <= named


def test_documented_broker_messages_exist_in_the_source() -> None:
    heading = "| a broker says | it means | what to do |"
    rows = PAGE.split(heading)[1].split("\n\n")[0].splitlines()[2:]
    said = [row.split("`")[1] for row in rows]
    paths = (Path(__file__).parents[2] / "kafscale").rglob("*.py")
    source = "".join(re.sub(r'"\s+f?"', "", path.read_text()) for path in paths)  # strings that are one
    assert len(said) > 10
    assert not [each for each in said if each not in source]


def test_every_work_class_is_documented_with_the_numbers_of_the_code() -> None:
    for work_class in WorkClass:
        assert f"\n| `{work_class.value}` |" in PAGE
    acknowledge, fetch, background, _ = (POLICIES[each].patience_count for each in WorkClass)
    assert f"{acknowledge} for `acknowledge`, {fetch} + 1 for `fetch`, {background} + 2 for `background`" in PAGE
    assert POLICIES[WorkClass.BACKGROUND].share == POLICIES[WorkClass.PREFETCH].share == 0.25


def test_the_arithmetic_is_right() -> None:
    for gbit_per_second, transfer_ms, at_once in ((10, 3.2, 6), (50, 0.64, 24)):
        assert pytest.approx(4_000_000 * 8 / (gbit_per_second * 1e9) * 1000) == transfer_ms
        assert round((transfer_ms + 15) / transfer_ms) == at_once
        assert f"{transfer_ms + 15:g} / {transfer_ms:g} = {at_once} at once" in PAGE
