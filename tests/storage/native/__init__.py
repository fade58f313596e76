"""Tests of `storage/native/`."""
