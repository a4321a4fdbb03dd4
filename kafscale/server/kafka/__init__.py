"""Kafka's protocol on a socket. Entered by `listener`; one `connection` is a reader, a writer and a queue between them.

transport     receive and send without copies
arrivals      what half requests may hold, and for how long; `pauses` is why a connection is not read from
dispatch      from a frame to its handler and back; `pieces` is for long requests and answers
"""
