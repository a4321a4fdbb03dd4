"""Topics as DataFrames, read by Spark straight from the bucket. Imports neither trio nor anything of the broker."""
