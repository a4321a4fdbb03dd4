"""Decides which broker leads which partition.

choice          leaders of new partitions, and moves for balance
writer          commits changes of placements, many partitions at once; places new topics
fail_over       gives the partitions of a lost broker to others in one commit
controller      the broker that does this for all, and writes their checkpoints
leaving         moves the partitions of a broker away that is stopped, or whose disk is full
administration  decisions of operators: drain, replace, remove brokers; move partitions
"""
