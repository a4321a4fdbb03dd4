"""Who clients are: SASL, and the users whose passwords the broker knows. One module per API key.

The messages of SASL are understood by `kafscale.security.session`; `kafscale.api.handling.authentication` does what
takes time. The table of APIs enters here.
"""
