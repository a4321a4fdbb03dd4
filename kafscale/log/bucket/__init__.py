"""The log's objects in the bucket: list and restore them at a start, delete them when no reader needs them."""
