"""Development tools: shared code of the tests and benchmarks. No wheel ships it.

    world       whole brokers on a simulated disk, bucket and network, driven by a seed
    history     checkers of the events that clients saw and of the data that became durable
    processes   real broker processes and loads on them
    fakes       parts of the broker, and its surroundings, in memory
    external    software of others: registries, Spark, S3 servers, clients that log in

`simulate` is a command. Helpers for the tests of users are in `kafscale.testing`; helpers for the tests of one room lie
beside these tests.
"""
