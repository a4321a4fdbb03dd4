"""Values with a schema registry's prefix, decoded into Arrow columns: Avro, Protobuf and JSON Schema.

A value is a zero byte, the id of its writer schema in four bytes (big-endian), for Protobuf the indexes of its message,
and the payload. `decoder.ValueDecoder` reads each by its writer schema into the one reader schema.
"""
