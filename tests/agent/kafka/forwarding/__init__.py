"""Tests of `agent/kafka/forwarding/`."""
