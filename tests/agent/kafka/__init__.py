"""Tests of `agent/kafka/`."""
