"""Tests of `sequencer/housekeeping/`."""
