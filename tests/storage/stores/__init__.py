"""Tests of `storage/stores/`."""
