"""Sockets: the listeners for Kafka's protocol (`kafka`) and the admin endpoint (`http`). Decides nothing about data."""
