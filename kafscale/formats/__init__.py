"""The formats of the bucket and the local disk: bytes to values and back, shared by the broker and Spark's readers.

Sans-IO, except for coroutines that wait for nothing but the object store. May not import trio. `reference` makes
`docs/reference/formats.md` from these modules.
"""
