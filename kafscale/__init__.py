"""KafScale: a Kafka broker whose log lives in object storage.

Holds the version only: importing `kafscale` must not import trio, because Spark workers import it too.
"""

__version__ = "0.1.0"
