"""The metadata store: a small key-value interface with revisions, transactions and changes, and its implementations.

base                        `MetadataStore`, the interface, and the changes that a store publishes
converter                   attrs objects as values of the store, and back
uuids                       random ids
follower                    a registry's memory that follows the changes
group_commit                transactions share one durable write, on the disk or first in the bucket's log
shared                      a head in the bucket, which several brokers replace
sqlite, reserve             the local store, and room for essential changes while its disk is full
checkpoint                  a copy in the bucket
"""
