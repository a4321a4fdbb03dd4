"""One segment in the bucket: what is wrong with it, what of it can be rebuilt, and what is set aside.

Entered by `quarantine.Quarantine`, to which readers report, and by `verify_segment` and `repair`, for a whole bucket.
"""
