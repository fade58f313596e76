"""Tests of `tidelog/embedded/`."""
