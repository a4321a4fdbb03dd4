"""What can be set while the broker runs, as `kafka-configs.sh` shows and changes it: configs of topics, and the quotas
of clients; the configs of a broker are shown only, and that there are no users.

DescribeConfigs, AlterConfigs and IncrementalAlterConfigs share `config_resources`, and ListConfigResources says of what
there are configs. Which configs there are, and what they may be, is in `kafscale.cluster.configs`; quotas are kept by
`kafscale.cluster.registries.client_quotas`. Only the table of APIs enters here.
"""
