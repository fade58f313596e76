"""Tests of `recovery/`."""
