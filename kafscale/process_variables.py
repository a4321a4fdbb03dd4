"""Environment variables by which a process of KafScale tells its children something. Imports nothing."""

SUPERVISOR_VARIABLE = "KAFSCALE_SUPERVISOR_PID"  # the process that has started this one, which ends with it
PROGRESS_VARIABLE = "KAFSCALE_CONSOLE_PROGRESS"  # makes a command print its progress as lines of JSON
