"""Tests of `agent/kafka/apis/`."""
