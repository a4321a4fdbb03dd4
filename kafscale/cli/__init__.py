"""The command line: arguments to Settings to `trio.run`. A command `kafscale NAME` is in the module of that name.

    serve, config                         the broker, and what its settings are
    topics, groups, produce, consume      clients of any broker; `records` is records as lines
    flush                                 asks a running broker
    inspect, verify, storage, adopt       look at a bucket or a data directory without a broker; `inspection` is what is
                                          in one file, `offline` the metadata of a broker that is stopped
    sql, pipeline                         start Spark; `sql_options` belongs to `sql`

What commands share: `main` finds them by their names, and turns every error into one line and an exit code;
`options` is `--bootstrap`, and running on trio; `output` is tables on a terminal, plain columns in a pipe, JSON for
programs; `progress` is how far a long command has come, and `logs` the broker's own log.

A command's module is imported when it is called, so that `kafscale --help` stays quick.
"""
