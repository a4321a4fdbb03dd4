"""Keeps topics in tables of Iceberg or Delta Lake, exactly once: `kafscale pipeline`.

`config` declares a pipeline, `document` reads its YAML, both without pyspark. `runner` runs one streaming query for
each mapping, `batch` writes each micro-batch in one snapshot, and `snapshots` finds in a table which were committed.
`iceberg` and `delta` have the differences between the formats of tables. `inspection` is behind `status` and
`validate`.
"""
