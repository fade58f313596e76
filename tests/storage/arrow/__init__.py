"""Tests of `storage/arrow/`."""
