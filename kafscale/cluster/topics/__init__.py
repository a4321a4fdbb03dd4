"""The topics of the cluster: names, ids, partition counts and configs. Entered by `topics.TopicRegistry`.

What the registry holds in memory is `index`, whose `Topic` everybody is given; what the metadata holds of it is
`records`. It knows nothing of who leads a partition.
"""
