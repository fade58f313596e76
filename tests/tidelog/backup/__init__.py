"""Tests of `tidelog/backup/`."""
