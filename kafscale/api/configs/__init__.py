"""Settings that `kafka-configs.sh` shows and changes while the broker runs: configs of topics, groups and brokers, and
quotas of clients.

DescribeConfigs, AlterConfigs and IncrementalAlterConfigs share `config_resources`, and ListConfigResources says of what
there are configs. Which configs there are, and what they may be, is in `kafscale.cluster.configs`; quotas are kept by
`kafscale.cluster.registries.client_quotas`. Only the table of APIs enters here.
"""
