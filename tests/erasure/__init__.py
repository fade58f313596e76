"""Tests of erasing records by key."""
