"""Development tools: shared code of the tests and benchmarks. No wheel ships it.

    world       whole brokers on a simulated disk, bucket and network, driven by a seed
    history     checkers of what clients saw and of what became durable
    processes   real broker processes, loads on them, and attacks
    fakes       parts of the broker, and its surroundings, in memory
    external    software of others: registries, catalogs, Java and Go programs, Spark, S3 servers

`simulate` and `fuzz` are commands. Helpers for tests of users are in `kafscale.testing`.
"""
