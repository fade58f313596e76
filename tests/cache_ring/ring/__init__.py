"""Tests of `cache_ring/ring/`."""
