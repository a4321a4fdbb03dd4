"""Identities and rights of clients: certificates, SASL, principals, ACLs. Nothing here touches a socket."""
