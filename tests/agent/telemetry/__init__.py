"""Tests of what clients push of their own metrics."""
