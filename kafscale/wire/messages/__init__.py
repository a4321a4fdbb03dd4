"""Kafka's messages by family of APIs, with the class names of Kafka's schema; a prefix tells apart equal names."""
