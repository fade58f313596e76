"""Kafka API 1, Fetch: its plan and its response."""
