"""The names of what a run measures: brokers, and two things that are none, to compare brokers with."""

OWN = "kafscale"
OWN_TWO = "kafscale, 2 processes"
OWN_MEMORY = "kafscale-memory"
OWN_MINIO = "kafscale-minio"
BEFORE = "kafscale-before"  # another checkout, with `--before`
BEFORE_MEMORY = "kafscale-before-memory"
KAFKA_DURABLE = "kafka-durable"
KAFKA_DEFAULT = "kafka-default"
OWN_ON_MEMORY = "kafscale, files in memory"  # where a sync costs nothing, and so is not compared
KAFKA_ON_MEMORY = "kafka-default, files in memory"
ENDPOINT = "only-answers"  # what a client can reach at most
DISK = "disk"  # its rate when all is synced, without other work

NO_BROKERS = (ENDPOINT, DISK)
BEFORE_OF = {OWN: BEFORE, OWN_MEMORY: BEFORE_MEMORY}
