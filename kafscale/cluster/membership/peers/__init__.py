"""Liveness, heartbeats and requests between brokers.

liveness          which brokers were heard of lately, and which have lost the store
heartbeats        from broker to broker; notices tell one broker at once of a new leader
peer_connections  connections, requests that wait for replies, and proof of the sender
loads             the loads that brokers report
lease             whether a broker with its own log may acknowledge; a check after a suspension
"""
