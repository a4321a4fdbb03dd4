"""The command line: arguments to Settings to `trio.run`; one module a command."""
