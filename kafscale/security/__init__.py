"""Who a client is and what it may do: security protocols, certificates, SASL, principals, ACLs. Nothing here touches a
socket.
"""
