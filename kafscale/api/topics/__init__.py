"""The APIs that change which topics there are, how many partitions they have, and which replicas those have.

    CreateTopics, DeleteTopics, CreatePartitions
    ElectLeaders                  have partitions led by their preferred replica (`kafka-leader-election.sh`)
    AlterPartitionReassignments   move partitions to other replicas (`kafka-reassign-partitions.sh`)
    ListPartitionReassignments    which are on their way
    AlterReplicaLogDirs           move replicas to other directories of a broker

They check a request as Kafka does and leave changes of topics to `kafscale.cluster.registries`. A partition has one
replica, the broker that leads it, which is the answer of `kafscale.cluster.membership.assignment`: copies of its
records are the object store's. What topics there are is told by Metadata (`kafscale.api.cluster.metadata`), and what
they are set to by `kafscale.api.configs`. Only the table of APIs enters here.
"""
