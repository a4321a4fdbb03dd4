"""Logins, users and access control lists. `kafscale.security.session` is the state machine of SASL."""
