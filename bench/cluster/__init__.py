"""`python -m bench.cluster`: several brokers on one bucket, alone and beside Apache Kafka."""
