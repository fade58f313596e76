"""Tests of `agent/kafka/transport/`."""
