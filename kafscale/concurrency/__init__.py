"""Small tools for tasks: nurseries whose errors come out alone, bounds on bytes, deadlines, turns on the event loop.

Any room may enter. May import trio and `kafscale.errors`, and nothing else of KafScale.
"""
