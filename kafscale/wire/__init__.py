"""The Kafka protocol, sans-IO: schema, codec, frames, record batches and one module per API's messages."""
