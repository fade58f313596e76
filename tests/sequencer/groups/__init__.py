"""Tests of `sequencer/groups/`."""
