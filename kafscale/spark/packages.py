"""Coordinates of the jars that commands give to Spark: the one place where they are pinned.

Spark resolves them itself (`spark.jars.packages`) from Maven Central or a mirror. Spark Connect and the Thrift server
are in pip's pyspark already.
"""

from __future__ import annotations

ICEBERG_VERSION = "1.11.0"
ICEBERG_SPARK = "4.1"  # the newest Spark that this Iceberg is made for
ICEBERG = f"org.apache.iceberg:iceberg-spark-runtime-{ICEBERG_SPARK}_2.13:{ICEBERG_VERSION}"
ICEBERG_AWS = f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG_VERSION}"  # S3FileIO, with the AWS SDK
DELTA_VERSION = "4.4.0"
DELTA = f"io.delta:delta-spark_{ICEBERG_SPARK}_2.13:{DELTA_VERSION}"
KAFKA_SOURCE = "org.apache.spark:spark-sql-kafka-0-10_2.13"  # of the version that pyspark has
SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"
POSTGRES = "org.postgresql:postgresql:42.7.7"
