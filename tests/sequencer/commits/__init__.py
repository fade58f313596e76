"""Tests of `sequencer/commits/`."""
