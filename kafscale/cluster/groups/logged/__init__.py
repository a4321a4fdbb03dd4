"""Groups and committed offsets as records of `__consumer_offsets`, and what the records of a partition say together.

log_records  offsets and classic groups; `log_forms` are the records of consumer groups
loading      batch by batch, what is left of a partition's groups
"""
