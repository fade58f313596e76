"""Tests of `storage/batches/`."""
