"""Logins, users and access control lists. One module per API key.

The messages of SASL are understood by `kafscale.security.session`; `kafscale.api.handling.authentication` does what
takes time. What a client may do is asked by `kafscale.api.handling.access`. The table of APIs enters here.
"""
