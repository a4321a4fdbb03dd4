"""Object storage behind one protocol, `base.ObjectStore`. Knows nothing of Kafka.

base, paths       the protocol, and all keys in the bucket
memory, file, s3  the implementations; one contract suite runs against all of them
wrappers          one job each: limits, retries, metrics, large objects in parts, hedging
opening           from the settings to a store with its wrappers, for the broker and the commands
guarded           the one gate through which objects are deleted
versions          objects that replace one another and are never overwritten; version_writer writes them
"""
