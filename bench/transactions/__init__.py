"""Transactions of KafScale and Apache Kafka under the same loads, in one run on one machine."""
