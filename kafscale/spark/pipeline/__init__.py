"""Topics kept in tables of Iceberg or Delta Lake, exactly once: `kafscale pipeline`.

What only reads the YAML imports no pyspark.

`config` is what a pipeline is written as, `document` reads it; `runner` keeps one streaming query for each mapping,
whose micro-batches `batch` turns into one snapshot each; `snapshots` finds in a table what was committed.
`iceberg` and `delta` have what is peculiar to a format of tables.
"""
