"""Discovery: the APIs that the broker speaks, the brokers, and the leaders and coordinators among them.

    ApiVersions               the APIs and their versions, asked before everything else
    Metadata                  the topics, and who leads their partitions
    DescribeTopicPartitions   the same of topics, in pages
    DescribeCluster           the brokers
    FindCoordinator           the broker that coordinates a group
    DescribeLogDirs           how many bytes each partition has
    DescribeQuorum            the controller, which alone has the metadata
    UpdateFeatures            levels of features, which the broker's version decides

Who leads and who coordinates is the answer of `kafscale.cluster.membership.assignment`. The table of APIs enters for
each; the dispatcher answers unknown versions by `api_versions`, and `kafscale.testing` alters what `metadata` says.
"""
