"""Tests of `tidelog/process/`."""
