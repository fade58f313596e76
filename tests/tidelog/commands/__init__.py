"""Tests of `tidelog/commands/`."""
