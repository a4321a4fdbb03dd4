"""The APIs that change which topics there are and how many partitions they have: CreateTopics, DeleteTopics,
CreatePartitions.

They check a request as Kafka does and leave the change to `kafscale.cluster.topics`. What topics there are is told by
Metadata (`kafscale.api.cluster.metadata`), and what they are set to by `kafscale.api.configs`. Only the table of APIs
enters here.
"""
