"""Keeps topics in tables of Iceberg or Delta Lake, exactly once: `kafscale pipeline`.

`config` declares a pipeline, `document` reads its YAML, both without pyspark. `runner` runs one streaming query for
each mapping, `batch` writes each micro-batch in one snapshot, and `snapshots` finds in a table which were committed.
`records` decodes, `tables` makes, routes to and maintains tables, `table_format` has Iceberg and Delta Lake.
`inspection` is behind `status` and `validate`.
"""
