"""A client's side of Kafka's protocol without I/O: its settings by Kafka's names, TLS, SASL, requests and replies.

    properties        files of settings, in the format of Java's properties
    security          which of TLS and SASL the settings ask for
    tls               the TLS context
    sasl              the user that logs in
    tokens            tokens of OAUTHBEARER, from a file or an issuer
    steps             the requests of a login
    client_protocol   requests to bytes, and bytes to replies
    failures          error codes to KafkaError with the code's name

Shared by `kafscale.client`, on trio, and `kafscale.spark`, which blocks. Only fetching a token waits, and blocks.
"""
