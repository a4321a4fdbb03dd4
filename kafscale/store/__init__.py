"""Object storage behind one protocol, `base.ObjectStore`. Knows nothing of Kafka."""
