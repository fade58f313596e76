"""Tests of `storage/segments/`."""
