"""Starts a broker before it serves: claim the bucket or join its brokers, and recover the metadata.

starting        the entry: `start_leading` claims the bucket or joins; makes a lone broker's bucket shared
member          the result: this broker as a member of its cluster
takeover        a lone broker claims the bucket (`claim`), and recovers the metadata (`recovery`)
unsharing       gives a shared bucket back to its last broker
adoption        topics that only the bucket or the local log knows
own_objects     checks the objects of this room for `kafscale verify`
"""
