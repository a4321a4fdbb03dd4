"""Tools for tasks: nurseries, signals, bounds on bytes, deadlines, turns on the event loop, and shared work.

Any room may enter. Imports trio and `kafscale.errors` only.
"""
