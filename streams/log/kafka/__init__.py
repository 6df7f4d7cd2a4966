"""The log on Apache Kafka, through confluent-kafka. Nothing outside of this package knows that library."""

from streams.log.kafka.log import KafkaLog

__all__ = ["KafkaLog"]
