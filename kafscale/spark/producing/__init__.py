"""Rows of Spark to a topic, by columns: record batches are made of Arrow's columns, without an object for a record.

    rows        the columns of a sink, and which rows go together murmur2     the partition of each key records
    columns to the bytes of records batches     records to batches, each in the sequence of its partition settings
    which settings of a producer this one knows; with others, librdkafka produces (`source.deliveries`) enrolment   the
    transaction that the records of a producer are in, if they are producer    an idempotent producer with several
    requests on their way

Entered by `producer.ColumnProducer`. Nothing here imports pyspark, or confluent-kafka.
"""
