"""Tests of `storage/`: the bytes."""
