"""The command line: arguments to Settings to `trio.run`; one module a command.

    main.py       the group, and how every error becomes one line and an exit code
    serve.py      flags made from the settings; runs the broker
    config.py     what is effective, and where it came from
    topics.py groups.py produce.py consume.py inspect.py
    records.py    records as lines: what produce reads and consume writes
    inspection.py what is in a segment, an index or a WAL file, and whether it is whole
    connecting.py --bootstrap and running a client command
    output.py     tables on a terminal, plain columns in a pipe, JSON for programs
    logs.py       the broker's own log

A command's module is imported when it is called, so that `kafscale --help` stays quick.
"""
