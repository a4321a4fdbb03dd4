"""TLS of clients and of the admin server: the certificate and its contexts, and handshakes with clients.

What a connection then sends and receives is `kafscale.server.kafka.tls_transport`.
"""
