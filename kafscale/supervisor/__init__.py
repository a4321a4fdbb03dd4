"""Several brokers on one machine: `kafscale serve --processes N`. Entered by `supervisor.serve`, which only `cli` does.

plans        from the settings of all brokers to those of each, and the command that starts it
child        one broker: started, watched, and started again when it dies
process      a process whose output is read, and which ends with this one
supervisor   all of them: one ready line, signals, the order of a shutdown
admin        the admin server: merges the brokers' metrics, flushes all of them; `asking` sends it requests

This process runs no broker, and imports little.
"""
