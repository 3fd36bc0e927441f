"""The processes that talk to Kafka: node, later bridge and backfill."""
