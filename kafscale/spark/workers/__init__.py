"""Tools of code in Spark's Python workers: the lowest room of `kafscale.spark`. It knows nothing of topics.

`calls` keeps each call of a worker cheap. `slices` has columns of bytes in one buffer, and zigzag varints by columns.
`source`, `bucket` and `values` enter here, and `pyspark_kafscale` for `calls`.
"""
