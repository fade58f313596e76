"""Tests of `agent/groups/coordinator/`."""
