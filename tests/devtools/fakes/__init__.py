"""In-memory stand-ins for brokers, logs, networks and clients, for tests on an autojump clock."""
