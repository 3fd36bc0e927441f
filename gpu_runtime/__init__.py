"""Models in memory and batches on devices. Knows nothing of Kafka or HTTP."""
