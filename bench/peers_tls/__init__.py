"""What `bench.peers --tls` compares, and its page: the loads are those of `bench.peers`, over TLS and with SASL."""
