"""The metadata store: a small key-value interface with revisions, transactions and changes, and its implementations.

base                        `MetadataStore`, the interface, and the changes that a store publishes
converter                   attrs objects to the values that the store keeps, and back
uuids                       ids that are made up once and then kept
follower                    a registry's memory that follows the changes
group_commit                transactions that share one durable write
journaled                   the log in the bucket before the local store
shared                      a head in the bucket, which several brokers replace
sqlite, reserve             the local store, and room for essential changes while its disk is full
checkpoint                  a copy in the bucket
"""
