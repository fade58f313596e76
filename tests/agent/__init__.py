"""Tests of `agent/`."""
