"""Several brokers on one machine: `kafscale serve --processes N`. Entered by `supervisor.serve`, which only `cli` does.

plans        from the settings of all brokers to those of each, and the command that starts it
child        one broker: started, watched, and started again when it dies; `backoff` says after how long
process      a process whose output is read and whose end is waited for; `parent` is how it ends with this one
supervisor   all of them: one ready line, signals, the order of a shutdown
admin        the admin server: `exposition` makes one page of metrics of all brokers', `flushes` one flush of all
asking       requests to the brokers' own admin servers

There is no broker in this process, and what it imports is little.
"""
