"""What tests and benchmarks share: Postgres, S3 endpoints, whole stacks, Java, Apache Kafka, seeds."""
