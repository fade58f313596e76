"""Tests of `cache_ring/coordinates/`."""
