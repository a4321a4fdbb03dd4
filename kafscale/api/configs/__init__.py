"""Configs of topics, groups and brokers, and quotas of clients, which `kafka-configs.sh` shows and changes.

DescribeConfigs, AlterConfigs and IncrementalAlterConfigs share `config_resources`; ListConfigResources lists the
resources with configs. The configs are in `kafscale.cluster.registries`.
"""
