"""The broker's HTTP client: `client` pools connections behind httpx's transport interface, `connection` is one of them.

The server loop is `kafscale.server.http`.
"""
