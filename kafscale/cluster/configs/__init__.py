"""Kafka's configs of topics and of brokers: their names, types and defaults, and where a value comes from."""
