"""A small Kafka client on trio and the project's own codec: for the command line, tests and benchmarks."""
