"""What every handler is given and asks, whatever its API: the room below all rooms of `kafscale.api`.

    calls                  one request's envelope, the client that sent it, and one row of the table of APIs
    services               the components that handlers work with
    partitions             the partition that a request is about, or who leads it instead
    new_topics             topics that another broker has created lately
    brokers                the brokers that a client is told of, and how it reaches them
    gate                   whether a Produce is allowed, before anyone looks at its batches
    authentication         what takes time in a login by SASL
    access                 what a client may do, by access control lists
    operations             which rights each API asks for
    guard                  refuses what can be refused before a handler sees a request
    refusals               an error as the answer to any request
    audit                  the log of who was refused what
    quotas                 byte rates of clients
    record_checks          the check of what is inside of batches, within bounds
    fetch_sessions         what a Fetch leaves out because its client knows it (KIP-227)

Every handler enters here, and so do the broker, which builds the services, and the server, which makes the calls.
Nothing here knows a handler.
"""
