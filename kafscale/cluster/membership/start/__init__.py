"""What a broker does at its start before it serves: claim the bucket or join its brokers, and recover the metadata.

starting        the entry: `start_leading`
takeover        alone: claims the bucket (`claim`), and recovers the metadata (`recovery`)
joining         with several brokers: `sharing` makes the bucket shared, `registration` registers this broker
lead            the result of both
end_cause       why a broker ended: fenced, replaced, or the error itself
unsharing       gives a shared bucket back to its last broker
adoption        topics that only the bucket or the local log knows; `unknown_batches` restores their batches
same_store      a data directory belongs to one store
own_objects     checks the objects of this room for `kafscale verify`
"""
