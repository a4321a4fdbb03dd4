"""Blocking requests to brokers, without trio: for writing, and for the newest records."""
