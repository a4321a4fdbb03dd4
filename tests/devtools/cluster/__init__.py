"""Several whole brokers and their clients in one simulated world, by a seed, as `tests.devtools.simulation` has one.

world        one seed's run: machines, clients, what goes wrong, and what must hold
extent       how much there is of a seed, long or short
weather      how bad it gets, and how often
machine      what outlasts a broker, the lives on it, and how they end
routes       how clients find the leader of a partition or the coordinator of a group
spread       a client's connections to several brokers, used as one
clients      parts of clients that belong together, and who has partitions moved
plain        those that have no transactions
temporary    those of a topic that is deleted and created anew
topics       one that is deleted and created anew, with clients that have not heard of it
visitor      a member of a group that reads it, whichever it is at the moment
line         a machine's way to the bucket: PUTs that arrive after their sender gave up, or died
links        the network between brokers
held         what a broker holds for ever, of what all share
head_log     what the head of the metadata says, one version after the other, and what it must never say
mutations    what a broker must not do, done on purpose: each has to be found
"""
