"""Tests of `cache_ring/pages/`."""
