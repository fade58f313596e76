"""Kafka's wire protocol: frames, connections, dispatch, error codes."""
