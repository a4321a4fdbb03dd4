"""Liveness, heartbeats and requests between brokers."""
