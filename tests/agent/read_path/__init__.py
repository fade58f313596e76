"""Tests of `agent/read_path/`."""
