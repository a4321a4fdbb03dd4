"""The comparison of `bench.peers --tls`, and its page: the loads are those of `bench.peers`, over TLS and with SASL."""
