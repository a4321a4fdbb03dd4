"""Reads keys and values that were written with a schema registry: its client, schemas, and limits of hostile bytes.

A value is a zero byte, the id of its writer schema in four bytes (big-endian), for Protobuf the indexes of its message,
and the payload. This room needs neither trio nor Arrow nor Spark; `kafscale.spark.values` makes columns on top of it.
Each format's library is imported with its module.
"""
