"""Tests of `cache_ring/peers/`."""
