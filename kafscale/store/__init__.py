"""Object storage behind one protocol. Knows nothing of Kafka."""
