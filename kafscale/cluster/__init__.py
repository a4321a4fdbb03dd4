"""Topics, groups, transactions, metadata, and which broker leads what. Touches no sockets.

State machines are synchronous: events go in, replies and timers come out.
"""
