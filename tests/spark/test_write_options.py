"""Settings of the producer, by names of librdkafka, with the defaults of Java's producer."""

import pytest

from kafscale.spark.source.options import Given

pytestmark = pytest.mark.spark  # it needs pyspark, and starts none


@pytest.mark.parametrize(
    ("settings", "is_idempotent"),
    [
        ({}, "true"),
        ({"kafka.acks": "all"}, "true"),
        ({"kafka.acks": "-1"}, "true"),
        ({"kafka.acks": "1"}, "false"),
        ({"kafka.request.required.acks": "0"}, "false"),
        ({"kafka.retries": "0"}, "false"),
        ({"kafka.max.in.flight.requests.per.connection": "6"}, "false"),
        ({"kafka.max.in.flight": "5"}, "true"),
        ({"kafka.enable.idempotence": "false"}, "false"),
    ],
)
def test_acks_of_1_were_refused_in_writing(settings, is_idempotent):
    from pyspark.sql.types import StringType, StructField, StructType

    from kafscale.spark.source.writer import WriteOptions

    given = Given({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", **settings})
    options = WriteOptions.of(given, StructType([StructField("value", StringType())]), overwrite=False)
    assert options.producer["enable.idempotence"] == is_idempotent
    options.open()  # which librdkafka refuses if settings contradict each other
