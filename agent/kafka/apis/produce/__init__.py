"""Kafka API 0, Produce: its request, the check of its batches, its response."""
