"""The metadata store: a small key-value interface with revisions, transactions and changes, and its implementations."""
