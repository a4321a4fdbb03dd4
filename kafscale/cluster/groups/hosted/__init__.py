"""Groups of Kafka 4 as the coordinator holds them: the state machine of `consumer` with its log, its timers and tasks.

group       one group: what an event leads to is written and timed, and answered when it is durable
switching   a group of one protocol makes place for one of the other
entry       what is under one group id: a group of either protocol, and the offsets
searching   the task that looks for the topics of regular expressions
"""
