"""HTTP clients: `client` pools connections of trio behind httpx's transport interface, `connection` is one of them.

`blocking` is a client for threads, without trio, which Spark's tasks and schema registries use. The server loop is
`kafscale.server.http`.
"""
