"""Tests of `agent/groups/streams/`."""
