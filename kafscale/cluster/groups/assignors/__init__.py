"""Who of a group is to have which partition. Entered by `table.ASSIGNORS`, by the names that clients know.

spec             what an assignor is told: members in order, what each subscribes to, and what each was to have before
uniform          the default: evenly over all partitions, moving few; `homogeneous` where all subscribe to the same
                 topics, `heterogeneous` where not
partitions       sets of partitions of several topics, which all of a group's state is made of too
range_assignor   topic by topic, so that equal partitions of several topics come together, whatever must move for that
"""
