"""The endpoint that `bench.peers` measures Java's producer against satisfies that producer."""

import pytest

from bench.peers.endpoint import Endpoint
from bench.peers.java import JavaProduceLoad, run_java_produce
from bench.peers.java_loads import ARTICLE_SETTING

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]  # the first test may wait for Maven


def test_java_sends_the_articles_records_to_the_endpoint_that_only_answers() -> None:
    """The run waited for five minutes, and failed: the answer did not name the topic's id."""
    with Endpoint().running() as running:
        figures = run_java_produce(JavaProduceLoad(address=running.address, setting=ARTICLE_SETTING, count=200))
    assert figures.requests == 200
