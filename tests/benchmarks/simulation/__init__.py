"""Mirrors benchmarks/simulation."""
