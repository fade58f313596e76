"""Tests of `cache_ring/`."""
