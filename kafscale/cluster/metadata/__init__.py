"""The metadata store: a small key-value interface with revisions and transactions, and what implements it."""
