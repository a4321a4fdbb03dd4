"""Spark's readers of a bucket beside Spark's Kafka source."""
