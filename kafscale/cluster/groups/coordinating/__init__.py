"""The coordinator of groups of both protocols. Entered by `coordinator.GroupCoordinator`.

commits         commits of very many offsets, in pieces
led_partitions  whose groups are coordinated here
keeper          tells the coordinator of partitions that this broker leads, and writes to them
moving          groups of earlier versions go to the log once; `former_metadata` is how they were kept
"""
