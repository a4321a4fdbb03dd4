"""Stand-ins in memory for brokers, logs, networks and clients, for tests on an autojump clock."""
