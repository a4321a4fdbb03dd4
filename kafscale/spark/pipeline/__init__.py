"""Topics kept in Iceberg tables, exactly once: `kafscale pipeline`. What only reads the YAML imports no pyspark.

`config` is what a pipeline is written as, `document` reads it; `runner` keeps one streaming query for each mapping,
whose micro-batches `batch` turns into one snapshot each; `snapshots` finds in a table what was committed.
`iceberg` has what is peculiar to that format of tables.
"""
