"""What a client does before its first request: its settings by Kafka's names, TLS and SASL.

    properties.py   files of settings, which are Java's properties
    security.py     which of TLS and SASL a client has, by its settings
    tls.py          the context of TLS
    sasl.py         who logs in
    tokens.py       where the tokens of OAUTHBEARER come from
    steps.py        what is sent and received for that, whoever sends it
    librdkafka.py   the same settings by the names of librdkafka, where those are others
    failures.py     error codes to KafkaError with the code's name

`kafscale.client`, on trio, and `kafscale.spark`, which blocks, have it in common: nothing here sends or waits, but
for a token, which blocks.
"""
