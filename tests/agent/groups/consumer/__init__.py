"""Tests of `agent/groups/consumer/`."""
