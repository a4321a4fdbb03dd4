"""The metadata store: a small key-value interface with revisions, transactions and changes, and what implements it.

base                        `MetadataStore`, what everybody else asks for
converter                   attrs objects to the values that the store keeps, and back
uuids                       ids that are made up once and then kept
changes, follower           what is committed after a revision, and how a registry's memory follows it
group_commit                where transactions meet
journaled, log_first        with the log in the bucket before the local store
shared                      with a head in the bucket, which several brokers replace
sqlite, database, reserve   the local store, and room for what must go on while its disk is full
checkpoint, changed_keys    a copy in the bucket
"""
