"""Tests of `agent/kafka/apis/produce/`."""
