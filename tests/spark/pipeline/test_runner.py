"""Which failures of a query are tried again."""

import pytest

pytestmark = pytest.mark.spark  # it needs pyspark, and starts none

JAVA = "org.apache.spark.SparkException: Job aborted.\n\tat org.apache.spark.Some.method(Some.scala:1)\n"


@pytest.mark.parametrize(
    ("text", "may_pass", "told"),
    [
        (f"{JAVA}Caused by: java.net.SocketTimeoutException: no worker", True, "org.apache.spark.SparkException"),
        (f"{JAVA}kafscale.errors.StoreUnavailable: LIST: refused", True, "kafscale.errors.StoreUnavailable: LIST"),
        (f"{JAVA}kafscale.errors.RegistryError: no answer", True, "kafscale.errors.RegistryError: no answer"),
        (
            f"{JAVA}kafscale.errors.ConfigError: startingOffsets says nothing of partition 1 of topic 't'",
            True,
            "kafscale.errors.ConfigError: startingOffsets",
        ),
        (f"{JAVA}kafscale.spark.reading.DataLoss: offsets 1 to 5", False, "kafscale.spark.reading.DataLoss: offsets"),
        (f"{JAVA}kafscale.errors.AccessDenied: expired", False, "kafscale.errors.AccessDenied: expired"),
    ],
)
def test_a_query_is_tried_again_where_another_try_may_do(text, may_pass, told):
    from kafscale.spark.pipeline.runner import QueryFailed

    failure = QueryFailed(text)
    assert failure.passing is may_pass
    assert str(failure).startswith(told)


def test_offsets_that_are_not_in_the_table_are_the_lag():
    from kafscale.spark.pipeline.runner import lag_of

    assert lag_of({"t": {"0": 5}}, {"t": {"0": 7, "1": 3}, "u": {"0": 1}}) == 6
    assert lag_of({"t": {"0": 9}}, {"t": {"0": 7}}) == 0
