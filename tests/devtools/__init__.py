"""The workshop: what the project's own tests and benchmarks are made with, and no wheel ships.

    simulation, simulate, determinism    whole brokers on a simulated disk, bucket and network, by a seed
    history, workload*, ordeal           clients that write down what they did, and what must hold of it
    transactional, transaction_history   the same of transactions
    hostile, fuzz, fuzz_frames           strangers' bytes
    memory_log, memory_broker, ...       parts of the broker in memory, on an autojump clock
    process, s3_processes, java, spark   real processes

What is of use to the tests of users is `kafscale.testing`.
"""
