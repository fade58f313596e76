"""Spark's data source, on a real stack, with Kafka producers and a real Spark."""
