"""Options of the writer: mistakes are reported before a query begins."""

import pytest

from kafscale.errors import ConfigError

pytestmark = pytest.mark.spark  # it needs pyspark, and starts none


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transactional": "yes"}, "transactional is true or false, not 'yes'"),
        ({"kafka.compression.level": "9"}, "kafka.compression.level: the writer does not know this setting"),
        ({"kafka.transactional.id": "mine"}, r"kafka\.transactional\.id is not supported: set transactional"),
        ({"kafka.security.protocol": "sasl_ssl"}, "kafka.sasl.mechanism: '' is not known; allowed: SCRAM-SHA-"),
        ({"kafka.ssl.provider": "x"}, "kafka.ssl.provider: is not known here; allowed: enable.ssl"),
        ({"kafka.transaction.timeout.ms": "soon"}, "is a positive number, not 'soon'"),
        ({"kafka.bootstrap.servers": "host:port:1"}, r"kafka\.bootstrap\.servers"),
        ({"transactionalId": " "}, "transactionalId has 1 to 200 characters"),
        ({"transactional": "false", "transactionalId": "mine"}, "transactionalId belongs to transactional=true"),
    ],
)
@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_transactions_that_can_not_be(kind, settings, message):
    with pytest.raises(ConfigError, match=message):
        write_with(kind, settings)


def test_a_batch_write_needs_a_transactional_id():
    with pytest.raises(ConfigError, match="needs the option transactionalId"):
        write_with("writer", {})


def write_with(kind, settings):
    from pyspark.sql.types import StringType, StructField, StructType

    from kafscale.spark.source.source import KafScaleDataSource

    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "transactional": "true", **settings}
    return getattr(KafScaleDataSource(given), kind)(StructType([StructField("value", StringType())]), False)
