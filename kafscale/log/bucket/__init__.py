"""What the bucket holds of the log: listed and restored at a start, and deleted when nobody reads it any more.

Entered by `restore` at a start, and by `deletion`, `topic_deletion` and `orphans` afterwards.
"""
