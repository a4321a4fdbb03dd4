"""Software of others, real or imitated: registries, catalogs, Java and Go programs, Spark, S3 servers."""
