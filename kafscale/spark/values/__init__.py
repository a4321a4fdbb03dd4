"""Decodes values with a schema registry's prefix into Arrow columns: Avro, Protobuf and JSON Schema.

A value is a zero byte, the id of its writer schema in four bytes (big-endian), for Protobuf the indexes of its message,
and the payload. `avro`, `protobuf` and `json_schema` read any value of their format, one by one. `avro_plan` and
`protobuf_plan` read common ones by columns, many times as fast (decisions 0037 and 0046).
"""
