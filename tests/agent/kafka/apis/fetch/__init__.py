"""Tests of `agent/kafka/apis/fetch/`."""
