"""Who a client is and what it may do: security protocols, SASL, principals, ACLs. Nothing here touches a socket."""
