"""Brokers and loads over TLS and with SASL: how both kinds of broker are secured, and what clients need for it."""
