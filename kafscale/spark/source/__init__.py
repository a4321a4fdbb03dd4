"""Spark's data source: `format("kafscale")` for batches, streams and writing. Entered by `source.KafScaleDataSource`.

options, offsets, bounds   options, and the offsets that they and Spark's filters mean planning, progress         from
options to splits, for batches and for streams writer, deliveries         rows to records, by a broker
transactional_writer, task_transaction   the same, each micro-batch once and as a whole lag_listener               how
far a stream is behind
"""
