"""Tests of `sequencer/history/`."""
