"""TLS, for clients and the admin endpoint: the certificate and its contexts (`contexts`), and handshakes with clients.

What a connection then sends and receives is `kafscale.server.kafka.tls_transport`.
"""
