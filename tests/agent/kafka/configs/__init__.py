"""Tests of `agent/kafka/configs/`."""
