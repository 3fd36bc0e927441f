"""What stands around the processes: embedded broker, topic administration, telemetry, real-Kafka launcher."""
