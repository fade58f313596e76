"""Tests of sealed batches and of the keys that encrypt keys."""
