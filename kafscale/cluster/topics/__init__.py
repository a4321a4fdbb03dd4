"""The topics of the cluster. Entered by `topics.Topics`; what it holds in memory is `index`."""
