"""Decides which broker leads which partition.

choice          leaders of new partitions, moves for balance (pure)
writer          commits changes of placements, many partitions at once; places new topics
balance         which partitions should move
fail_over       gives the partitions of a lost broker to others in one commit
controller      the broker that does this for all, and writes their checkpoints
leaving         a broker that stops moves its partitions away first
disk_room       a broker whose disk is full moves its partitions away
mover           moves that an operator asks for
administration  draining, replacing and removing brokers
"""
