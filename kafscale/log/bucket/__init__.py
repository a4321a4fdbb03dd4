"""The log's objects in the bucket: list and restore them at a start, delete them when no reader needs them.

Entered by `restore` at a start, and by `deletion`, `topic_deletion` and `orphans` afterwards.
"""
