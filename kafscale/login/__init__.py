"""A client's side of Kafka's protocol without I/O: its settings by Kafka's names, TLS, SASL, requests and replies.

Shared by `kafscale.client`, on trio, and `kafscale.spark`, which blocks. Only fetching a token waits, and blocks.
"""
