"""What code in Spark's Python workers stands on: the lowest room of `kafscale.spark`, which knows nothing of topics.

    calls     what a worker pays for each call of Spark, and how that is kept small
    http      blocking HTTP, since trio is not for workers
    slices    columns of bytes from one buffer
    varints   zigzag varints, by themselves and by columns

`source`, `bucket` and `values` enter here, and `pyspark_kafscale` for `calls`.
"""
