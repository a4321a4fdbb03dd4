"""Shared parts of all handlers, which they reach by `services`; nothing here knows a handler."""
