"""Tests of `benchmarks/load/`."""
