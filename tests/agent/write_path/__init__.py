"""Tests of `agent/write_path/`."""
