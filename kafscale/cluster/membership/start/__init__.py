"""Starts a broker before it serves: claim the bucket or join its brokers, and recover the metadata.

starting         the entry: `start_leading` claims the bucket or joins
member           the result: this broker as a member of its cluster
takeover         a lone broker claims the bucket (`claim`), and recovers the metadata (`recovery`)
sharing          makes a lone broker's bucket shared; the registration of a broker
sharing_member   a broker that shares the bucket
end_cause        why a broker ended: fenced, replaced, or the error itself
unsharing        gives a shared bucket back to its last broker
adoption         topics that only the bucket or the local log knows; `unknown_batches` restores their batches
directory_notes  notes about the data directory: its store, the files of its log
own_objects      checks the objects of this room for `kafscale verify`
"""
