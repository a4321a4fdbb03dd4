"""Liveness, heartbeats and requests between brokers.

liveness          which brokers were heard of lately (pure)
heartbeats        from broker to broker, over `peer_connections`
peer_calls        requests that wait for replies
leader_notices    tell one broker at once what it leads
senders           check that a request comes from the broker that it names
loads             the loads that brokers report
store_loss        brokers that have lost the store while it answers others
lease             whether a broker with its own log may acknowledge; a check after a suspension
"""
