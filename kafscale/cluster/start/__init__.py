"""What a broker's start does before it serves: it may lead from then on, and has the metadata. Entered by `starting`.

takeover    alone: claims the bucket (`claim`), and recovers the metadata (`recovery`)
joining     beside others: `sharing` makes a broker alone the first of several, `registering` tells them of it
lead        what either comes to
ended       why it has ended by an error: fenced by others, replaced, or the error itself
ending      has the last of several brokers have the bucket to itself again
adoption    topics that only the bucket or the local log knows; `giving_back` puts back what the log has of them
same_store  a data directory is started with its own store only
own_objects checks all of this for `kafscale verify`
"""
