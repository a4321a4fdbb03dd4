"""Tools of code in Spark's Python workers: the lowest room of `kafscale.spark`. It knows nothing of topics.

    calls     the cost of each call of a worker, and how to keep it small http      blocking HTTP, since trio is not for
    workers slices    columns of bytes in one buffer, and zigzag varints by columns

`source`, `bucket` and `values` enter here, and `pyspark_kafscale` for `calls`.
"""
