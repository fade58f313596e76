"""Tests of `tidelog/demo/`."""
