"""Who leads: the claim in the bucket, and what a start does once it has it.

Entered by `takeover.take_lead` at a start. `recovery` finds the metadata to begin with, `adoption` the topics that only
the bucket knows, and `own_objects` checks all of this for `kafscale verify`. `joining` is the start beside other
brokers, and `ending` what has the last of them have the bucket to itself again.
"""
