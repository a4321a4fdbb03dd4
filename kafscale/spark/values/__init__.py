"""Decodes values with a schema registry's prefix into Arrow columns: Avro, Protobuf and JSON Schema.

Schemas and the registry's client are in `kafscale.values`. `avro`, `protobuf` and `json_schema` read any value of their
format, one by one. `avro_plan` and `protobuf_plan` read common ones by columns, many times as fast (decisions 0037 and
0046).
"""
