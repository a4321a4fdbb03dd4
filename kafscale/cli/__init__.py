"""The command line: arguments to Settings to `trio.run`. `main` has the commands; most are in modules of their names.

    serve                                 `kafscale serve` and `kafscale config`, and the broker's log
    topics, groups, produce, consume      clients of any broker; `records` has records as lines
    brokers, partitions, transactions,
    users, acls, flush                    administration of running brokers
    inspect, verify, storage, adopt       work on a bucket or a data directory without a broker; `inspection` reads one
                                          object, `offline` the metadata of a stopped broker
    sql, pipeline                         use Spark

    options, output, reference            shared options; tables, JSON and progress bars; reference pages of options

A command's module is imported when it is called, so that a start is quick.
"""
