"""Tests of `agent/kafka/routing/`."""
