"""Spark's data source: `format("kafscale")` for batches, streams and writing. Entered by `source.KafScaleDataSource`.

options, planning, bounds, offsets   what is asked for, and what of the bucket answers it
progress                             streams
writer                               records to a broker
"""
