"""Tests of `agent/groups/classic/`."""
