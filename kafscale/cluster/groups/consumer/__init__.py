"""Consumer groups of Kafka 4 (KIP-848), as a synchronous state machine. Entered by `group.ConsumerGroup`."""
